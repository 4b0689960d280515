"""Statistics of weights, gradients, updates and activations of one training step, from outside the model and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import paddle
from paddle import Tensor, nn
from threadpoolctl import ThreadpoolController

from danlu.engines.base import Observed, TensorSums
from danlu.engines.paddle.auto_parallel import own
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.fully_sharded import gradient, held
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.optimizer import Optimizer
from danlu.recipe import Recipe

_OVERFLOWS = np.errstate(over="ignore", invalid="ignore")
"""The figures say so."""
_HALF_OCTAVES = 512
"""The sign and the exponent of a float32."""


class Watched(Protocol):
    """What is known of an engine here."""

    recipe: Recipe
    layout: Layout
    stages: list[CausalLM]
    parameters: dict[str, Tensor]
    names: dict[str, str]
    optimizer: Optimizer


class Observer:
    """Collects the sums of one step. The engine calls ``gradients`` before the update and ``updates`` after it."""

    def __init__(self, engine: Watched, histograms: bool) -> None:
        self.engine, self.histograms = engine, histograms
        self.found: dict[tuple[str, str], TensorSums] = {}
        self.logits: dict[str, float] = {}
        self.forward = True
        """Whether what modules give out is that of a forward pass, and not of recomputation."""

    @paddle.no_grad()
    @_OVERFLOWS
    def gradients(self, scale: float) -> None:
        """Of what the backward pass has left, which is ``scale`` times the gradient."""
        for name, parameter in self.engine.parameters.items():
            if (found := gradient(parameter)) is not None:
                for part in _parts(held(parameter, self.engine.layout, found)):
                    self._add("gradient", name, part / scale)

    @paddle.no_grad()
    @_OVERFLOWS
    def updates(self, learning_rate: float) -> None:
        """Of the weights after a step of AdamW, and of what it changed them by.

        That comes from the moments, not from a copy of the weights: AdamW makes w' = (1 - r d) w - r s, with s from the moments,
        so that w' - w = (-r d w' - r s) / (1 - r d).
        """
        optimizer, layout = self.engine.optimizer, self.engine.layout
        first, second = (1 - beta**optimizer.steps for beta in optimizer.settings.betas)
        for group in optimizer.groups:
            rate, decay = learning_rate * group["learning_rate"], group["weight_decay"]
            for parameter in group["params"]:
                name = self.engine.names[parameter.name]
                if name not in optimizer.reducer.updated:
                    continue
                moments = (held(parameter, layout, moment) for moment in optimizer.moments(parameter))
                tensors = (held(parameter, layout), *moments)
                for weights, mean, square in zip(*map(_parts, tensors), strict=True):
                    root = _library(square).sqrt(square / second)
                    moved = mean / (root + optimizer.settings.epsilon) * (rate / first)
                    self._add("parameter", name, weights)
                    self._add("update", name, (weights * (-rate * decay) - moved) / (1 - rate * decay))

    def result(self) -> Observed:
        """The sums over all processes, each tensor counted once."""
        layout, counted = self.engine.layout, set(self.engine.optimizer.reducer.counted)
        first = layout.zero_stage > 0 or layout.data_rank == 0
        mine = {
            (kind, name): sums
            for (kind, name), sums in self.found.items()
            if (layout.tensor_rank == 0 or layout.sequence_parallel if kind == "activation" else first and name in counted)
        }
        found: dict[tuple[str, str], TensorSums] = {}
        logits: dict[str, float] = {}
        for theirs, largest in layout.gather((mine, self.logits)):
            for key, sums in theirs.items():
                found[key] = _joined(found[key], sums) if key in found else sums
            for name, value in largest.items():
                logits[name] = _larger(logits.get(name, value), value)
        return Observed(found, logits)

    @paddle.no_grad()
    @_OVERFLOWS
    def activation(self, name: str, _module: nn.Layer, _inputs: Any, output: Tensor) -> None:
        """A forward hook: what a module gives out."""
        if self.forward:
            for part in _parts(own(output.detach())):
                self._add("activation", name, part)

    @paddle.no_grad()
    @_OVERFLOWS
    def attention(self, layer: int, q_bthk: Tensor, k_btgk: Tensor, mask: Tensor | None) -> None:
        """What queries and keys make with each other; see ``Attention.observed``."""
        if self.forward:
            name = f"model.layers.{layer}.self_attn"
            largest = _largest_logit(own(q_bthk.detach()), own(k_btgk.detach()), mask if mask is None else own(mask))
            self.logits[name] = _larger(self.logits.get(name, largest), largest)

    def _add(self, kind: str, name: str, values: Any) -> None:
        """Count a part of a tensor in."""
        library = _library(values)
        wide = values.astype("float64")
        spread = None
        if self.histograms:
            # By sign, negative first, then by the exponent of the square: half-octaves of the magnitude.
            place = ((values * library.abs(values)).view("int32") >> 23) + _HALF_OCTAVES // 2
            spread = np.asarray(library.bincount(place, minlength=_HALF_OCTAVES)).reshape(2, -1)[::-1]
        new = TensorSums(
            float(values.size),
            float(wide.sum()),
            float(library.dot(wide, wide)),
            max(float(values.max()), -float(values.min())),
            float(values.size - library.count_nonzero(values)),
            spread,
        )
        self.found[kind, name] = _joined(self.found[kind, name], new) if (kind, name) in self.found else new


@contextmanager
def observing(engine: Watched, histograms: bool) -> Iterator[Observer]:
    """Watch the forward passes inside; without ``train.compile``, which would compile hooks in."""
    observer = Observer(engine, histograms)
    hooks: list[Any] = []
    # A pipeline's schedule does not say whether a forward pass is a recomputation.
    blind = engine.recipe.train.compile or (engine.layout.pipeline > 1 and engine.recipe.memory.recompute != "none")
    for model in [stage.model for stage in engine.stages] if not blind else ():
        for layer, block in model.layers.items():
            block.self_attn.observed = partial(observer.attention, int(layer))
            for part, module in (("", block), (".self_attn", block.self_attn), (".mlp", block.mlp)):
                hooks.append(module.register_forward_post_hook(partial(observer.activation, f"model.layers.{layer}{part}")))
        if model.embed_tokens is not None:
            hooks.append(model.embed_tokens.register_forward_post_hook(partial(observer.activation, "model.embed_tokens")))
    try:
        # Threads of numpy's would go on spinning beside those of paddle.
        with ThreadpoolController().select(internal_api="openblas").limit(limits=1):
            yield observer
    finally:
        for hook in hooks:
            hook.remove()
        for stage in engine.stages if not blind else ():
            for block in stage.model.layers.values():
                block.self_attn.observed = None


def _joined(one: TensorSums, other: TensorSums) -> TensorSums:
    return TensorSums(
        one.entries + other.entries,
        one.total + other.total,
        one.squares + other.squares,
        max(one.largest, other.largest),
        one.zeros + other.zeros,
        None if one.spread is None or other.spread is None else one.spread + other.spread,
    )


def _larger(one: float, other: float) -> float:
    """NaN, where one of the two is."""
    return float(np.maximum(one, other))


def _largest_logit(queries_bthk: Tensor, keys_btgk: Tensor, mask: Tensor | None) -> float:
    """Over all queries and the keys that they see; None is plain causal. A few rows of queries at a time."""
    b, t, h, k = queries_bthk.shape
    g = keys_btgk.shape[2]
    if mask is None:
        mask = paddle.ones([1, 1, t, t], dtype="bool").tril()
    rows = max(1, _at_once(queries_bthk) // (b * h * t))
    q_bthk, k_btgk, seen_bgnqt = _here(queries_bthk), _here(keys_btgk), _here(mask)[:, :, None]
    q_bgntk = q_bthk.reshape([b, t, g, h // g, k]).transpose([0, 2, 3, 1, 4])
    k_bgnkt = k_btgk.transpose([0, 2, 3, 1])[:, :, None]
    best = float("-inf")
    for first in range(0, t, rows):
        stop = min(first + rows, t)
        logits = q_bgntk[:, :, :, first:stop] @ k_bgnkt[..., :stop]
        best = _larger(best, float(_library(logits).where(seen_bgnqt[..., first:stop, :stop], logits, float("-inf")).max()))
    return best / float(k**0.5)


def _parts(tensor: Tensor) -> Iterator[Any]:
    """Flat float32 parts; none of an empty tensor, such as ZeRO 3 leaves some ranks of a small one."""
    flat = _here(tensor if tensor.dtype == paddle.float32 else tensor.astype("float32")).reshape([-1])
    size = _at_once(tensor)
    return (flat[first : first + size] for first in range(0, flat.size, size))


def _at_once(tensor: Tensor) -> int:
    """How many entries are looked at together: on a CPU what its caches hold, elsewhere what takes little memory."""
    return 1 << (17 if tensor.place.is_cpu_place() else 24)


def _here(tensor: Tensor) -> Any:
    """On a CPU the same memory as a numpy array, whose operators take a fraction of the time of paddle's there."""
    return np.from_dlpack(tensor.detach()) if tensor.place.is_cpu_place() else tensor


def _library(values: Any) -> Any:
    """Whose functions take these values."""
    return np if isinstance(values, np.ndarray) else paddle

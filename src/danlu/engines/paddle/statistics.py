"""Statistics of weights, gradients, updates and activations of one training step, from outside the model and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import paddle
from paddle import Tensor, nn

from danlu.engines.base import Observed, TensorSums
from danlu.engines.paddle.auto_parallel import own
from danlu.engines.paddle.decoder import Attention, CausalLM, rotate
from danlu.engines.paddle.fully_sharded import gradient, held
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.optimizer import Optimizer
from danlu.recipe import Recipe

_LOGITS = 1 << 22
"""Attention logits made at once."""
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
    def gradients(self, scale: float) -> None:
        """Of what the backward pass has left, which is ``scale`` times the gradient."""
        for name, parameter in self.engine.parameters.items():
            if (found := gradient(parameter)) is not None:
                self._add("gradient", name, held(parameter, self.engine.layout, found).astype("float32") / scale)

    @paddle.no_grad()
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
                weights = held(parameter, layout).astype("float32")
                mean, square = (held(parameter, layout, moment) for moment in optimizer.moments(parameter))
                moved = mean / ((square / second).sqrt() + optimizer.settings.epsilon) * (rate / first)
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
                logits[name] = max(logits.get(name, value), value)
        return Observed(found, logits)

    @paddle.no_grad()
    def activation(self, name: str, _module: nn.Layer, _inputs: Any, output: Tensor) -> None:
        """A forward hook: what a module gives out."""
        if self.forward:
            self._add("activation", name, own(output.detach()).astype("float32"))

    @paddle.no_grad()
    def logit_maximum(self, layer: int, made: dict[str, Tensor], module: Attention, inputs: Any, _output: Tensor) -> None:
        """A forward hook of attention: the largest logit that the mask lets be seen, from the queries and keys just made."""
        queries, keys = made.pop("q"), made.pop("k")
        if not self.forward:
            return
        _, rotary, mask, _ = inputs
        cos, sin = map(own, rotary)
        b, t = queries.shape[:2]
        q_bthk, k_bthk = (
            rotate(each.reshape([b, t, -1, module.head_dim]), cos, sin, module.interleaved) for each in (queries, keys)
        )
        k_bthk = k_bthk.repeat_interleave(module.groups, axis=2)
        name = f"model.layers.{layer}.self_attn"
        self.logits[name] = max(
            self.logits.get(name, float("-inf")), _largest_logit(q_bthk, k_bthk, mask if mask is None else own(mask))
        )

    def _add(self, kind: str, name: str, values: Tensor) -> None:
        """Count a float32 tensor in."""
        if not values.size:  # ZeRO 3 leaves some ranks nothing of a small one
            return
        wide = values.flatten().astype("float64")
        zeros = float((wide == 0).sum())
        spread = None
        if self.histograms:
            signed = (values * values.abs()).flatten().view("int32")
            place = paddle.bitwise_right_shift(signed, paddle.to_tensor(23, dtype="int32"))
            counts = paddle.bincount(paddle.bitwise_and(place, paddle.to_tensor(_HALF_OCTAVES - 1, dtype="int32")))
            spread = paddle.nn.functional.pad(counts, [0, _HALF_OCTAVES - counts.shape[0]]).numpy()
        new = TensorSums(
            float(wide.size),
            float(wide.sum()),
            float((wide * wide).sum()),
            float(wide.abs().max()),
            zeros,
            # By sign, positive first, then by the exponent of the square: half-octaves of the magnitude.
            None if spread is None else spread.reshape(2, _HALF_OCTAVES // 2),
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
            hooks += _attention_hooks(observer, int(layer), block.self_attn)
            for part, module in (("", block), (".self_attn", block.self_attn), (".mlp", block.mlp)):
                hooks.append(module.register_forward_post_hook(partial(observer.activation, f"model.layers.{layer}{part}")))
        if model.embed_tokens is not None:
            hooks.append(model.embed_tokens.register_forward_post_hook(partial(observer.activation, "model.embed_tokens")))
    try:
        yield observer
    finally:
        for hook in hooks:
            hook.remove()


def _attention_hooks(observer: Observer, layer: int, attention: Attention) -> list[Any]:
    made: dict[str, Tensor] = {}

    def keep(which: str, _module: nn.Layer, _inputs: Any, output: Tensor) -> None:
        made[which] = own(output.detach())

    sources = (
        {"q": attention.q_norm, "k": attention.k_norm} if attention.qk_norm else {"q": attention.q_proj, "k": attention.k_proj}
    )
    hooks = [module.register_forward_post_hook(partial(keep, which)) for which, module in sources.items()]
    return [*hooks, attention.register_forward_post_hook(partial(observer.logit_maximum, layer, made))]


def _joined(one: TensorSums, other: TensorSums) -> TensorSums:
    return TensorSums(
        one.entries + other.entries,
        one.total + other.total,
        one.squares + other.squares,
        max(one.largest, other.largest),
        one.zeros + other.zeros,
        None if one.spread is None or other.spread is None else one.spread + other.spread,
    )


def _largest_logit(q_bthk: Tensor, k_bthk: Tensor, mask: Tensor | None) -> float:
    """Over all queries and the keys that they see; None is plain causal. A few rows of queries at a time."""
    b, t, h, k = q_bthk.shape
    q_bhtk, k_bhtk = q_bthk.transpose([0, 2, 1, 3]), k_bthk.transpose([0, 2, 1, 3])
    rows = max(1, _LOGITS // (b * h * t))
    best = float("-inf")
    positions = paddle.arange(t)
    for first in range(0, t, rows):
        stop = min(first + rows, t)
        logits = paddle.matmul(q_bhtk[:, :, first:stop], k_bhtk[:, :, :stop], transpose_y=True)
        seen = positions[:stop] <= positions[first:stop, None]
        if mask is not None:
            seen = seen & mask[:, :, first:stop, :stop]
        best = max(best, float(paddle.where(seen, logits, paddle.full_like(logits, float("-inf"))).max()))
    return best / float(k**0.5)

"""Statistics of weights, gradients, updates and activations of one training step, from outside the model and the optimizer.

Each process sums over the pieces that it would write into a checkpoint, so that over all of them every entry counts once however
a tensor is split or copied; one reduction then gives the sums over whole tensors. Activations are counted where they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from danlu.engines.base import Observed, TensorSums
from danlu.engines.torch.decoder import Attention, CausalLM, rotate
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.offload import own_gradient
from danlu.engines.torch.optimizer import Optimizer
from danlu.engines.torch.pieces import local
from danlu.engines.torch.slices import written_slices
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

_CHUNK = {"cpu": 1 << 18}
"""Entries looked at at once: on a CPU what its caches hold, elsewhere what takes little memory."""
_LOGITS = 1 << 22
"""Attention logits made at once."""
_HALF_OCTAVES = 512
"""The sign and the exponent of a float32."""


class Watched(Protocol):
    """What is known of an engine here."""

    recipe: Recipe
    shape: ModelShape
    layout: Layout
    stages: list[CausalLM]
    own: dict[str, nn.Parameter]
    optimizer: Optimizer
    device: str


class Observer:
    """Collects the sums of one step. The engine calls ``gradients`` before the update and ``updates`` after it."""

    def __init__(self, engine: Watched, histograms: bool) -> None:
        self.engine = engine
        layers = [f"model.layers.{layer}" for layer in range(engine.shape.layers)]
        tensors = list(tensor_shapes(engine.shape))
        modules = ["model.embed_tokens", *(f"{layer}{part}" for layer in layers for part in ("", ".self_attn", ".mlp"))]
        keys = [(kind, name) for kind in ("parameter", "gradient", "update") for name in tensors]
        keys += [("activation", name) for name in modules]
        self.rows = {key: row for row, key in enumerate(keys)}
        """The same on every process, whatever it holds."""
        device = torch.device(engine.device)
        self.sums = torch.zeros(len(keys), 4, dtype=torch.float64, device=device)
        """Entries, total, total of the squares, zeros."""
        self.largest = torch.zeros(len(keys), dtype=torch.float64, device=device)
        self.spread = torch.zeros(len(keys), _HALF_OCTAVES, dtype=torch.int64, device=device) if histograms else None
        self.logits = torch.full((engine.shape.layers,), -torch.inf, dtype=torch.float64, device=device)

    @torch.no_grad()
    def gradients(self, scale: float) -> None:
        """Of what the backward pass has left, which is ``scale`` times the gradient."""
        own = self.engine.own
        pieces = {name: own_gradient(parameter) for name, parameter in own.items() if parameter.grad is not None}
        for name, piece in self._shared((name, own[name], piece) for name, piece in pieces.items()):
            for part in _chunks(piece):
                self._add("gradient", name, part.float() / scale)

    @torch.no_grad()
    def updates(self) -> None:
        """Of the weights after a step of AdamW, and of what it changed them by.

        That comes from the moments, not from a copy of the weights, for which there may be no memory: AdamW makes
        w' = (1 - r d) w - r s, with s from the moments, so that w' - w = (-r d w' - r s) / (1 - r d).
        """
        own, adamw = self.engine.own, self.engine.optimizer.adamw
        moved = {name: parameter for name, parameter in own.items() if adamw.state.get(parameter)}  # what is frozen has none
        groups = {parameter: group for group in adamw.param_groups for parameter in group["params"]}
        moments = [dict(self._shared((n, p, local(adamw.state[p][key])) for n, p in moved.items())) for key in _MOMENTS]
        for name, weights in self._shared((name, parameter, local(parameter)) for name, parameter in own.items()):
            if (parameter := moved.get(name)) is None:
                for part in _chunks(weights):
                    self._add("parameter", name, part.float())
                continue
            speed = _speed(groups[parameter], int(adamw.state[parameter]["step"]))
            for part, *moment in zip(_chunks(weights), *(_chunks(each[name]) for each in moments), strict=True):
                part = part.float()
                self._add("parameter", name, part)
                self._add("update", name, speed(part, *(each.to(part.device, torch.float32) for each in moment)))

    def result(self) -> Observed:
        """The sums over all processes; all call."""
        self.engine.layout.reduce(self.sums)
        for each in (self.largest, self.logits):
            self.engine.layout.reduce(each, largest=True)
        if self.spread is not None:
            self.engine.layout.reduce(self.spread)
        sums, largest = self.sums.tolist(), self.largest.tolist()
        # By sign, positive first, then by the exponent of the square: half-octaves of the magnitude.
        spread = None if self.spread is None else self.spread.cpu().numpy().reshape(-1, 2, _HALF_OCTAVES // 2)
        found = {}
        for key, row in self.rows.items():
            entries, total, squares, zeros = sums[row]
            if entries:
                found[key] = TensorSums(entries, total, squares, largest[row], zeros, None if spread is None else spread[row])
        logits = {f"model.layers.{layer}.self_attn": value for layer, value in enumerate(self.logits.tolist())}
        return Observed(found, {name: value for name, value in logits.items() if value != -torch.inf})

    def activation(self, name: str, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        """A forward hook: what a module gives out."""
        if not _is_first_pass(output):
            return
        with torch.no_grad(), _disable_current_modes():  # selective recomputation would take these operators for the model's
            for part in _chunks(output.detach()):
                self._add("activation", name, part.float())

    def logit_maximum(self, layer: int, made: dict[str, Tensor], module: Attention, inputs: Any, _output: Tensor) -> None:
        """A forward hook of attention: the largest logit that the mask lets be seen, from the queries and keys just made."""
        queries, keys = made.pop("q"), made.pop("k")
        if not _is_first_pass(queries):
            return
        with torch.no_grad(), _disable_current_modes():
            _, (cos, sin), mask, _ = inputs
            b, t = queries.shape[:2]
            q_bhtk = rotate(queries.view(b, t, -1, module.head_dim), cos, sin, module.interleaved).transpose(1, 2)
            k_bgtk = rotate(keys.view(b, t, -1, module.head_dim), cos, sin, module.interleaved).transpose(1, 2)
            found = _largest_logit(q_bhtk, k_bgtk, mask)
            self.logits[layer] = torch.maximum(self.logits[layer], found.double())

    def _shared(self, tensors: Iterable[tuple[str, Tensor, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """What this process looks at of tensors that come as (name, parameter, own piece)."""
        for name, share in written_slices(tensors, self.engine.layout).items():
            yield name, share.tensor

    def _add(self, kind: str, name: str, values: Tensor) -> None:
        """Count a flat float32 tensor in."""
        row = self.rows[kind, name]
        wide = values.double()
        smallest, greatest = torch.aminmax(values)
        entries = torch.full((), values.numel(), dtype=torch.float64, device=values.device)
        zeros = (values.numel() - torch.count_nonzero(values)).double()
        self.sums[row] += torch.stack((entries, wide.sum(), torch.dot(wide, wide), zeros)).to(self.sums.device)
        magnitude = torch.maximum(-smallest, greatest).double().to(self.largest.device)
        self.largest[row] = torch.maximum(self.largest[row], magnitude)
        if self.spread is not None:
            signed = (values * values.abs()).view(torch.int32)
            place = signed.bitwise_right_shift_(23).bitwise_and_(_HALF_OCTAVES - 1)
            self.spread[row] += torch.bincount(place, minlength=_HALF_OCTAVES).to(self.spread.device)


_MOMENTS = ("exp_avg", "exp_avg_sq")


@contextmanager
def observing(engine: Watched, histograms: bool) -> Iterator[Observer]:
    """Watch the forward passes inside; without ``train.compile``, which would leave hooks out or compile them in."""
    observer = Observer(engine, histograms)
    hooks: list[Any] = []
    replicated = engine.layout.tensor_rank > 0 and not engine.recipe.parallel.sequence_parallel
    for stage in engine.stages if not engine.recipe.train.compile else ():
        for layer, block in stage.model.layers.items():
            attention = block.self_attn
            assert isinstance(attention, Attention)
            hooks += _attention_hooks(observer, int(layer), attention)
            if replicated:
                continue
            for part, module in (("", block), (".self_attn", attention), (".mlp", block.mlp)):
                assert isinstance(module, nn.Module)
                hooks.append(module.register_forward_hook(partial(observer.activation, f"model.layers.{layer}{part}")))
        if stage.model.embed_tokens is not None and not replicated:
            hooks.append(stage.model.embed_tokens.register_forward_hook(partial(observer.activation, "model.embed_tokens")))
    try:
        yield observer
    finally:
        for hook in hooks:
            hook.remove()


def _attention_hooks(observer: Observer, layer: int, attention: Attention) -> list[Any]:
    made: dict[str, Tensor] = {}

    def keep(which: str, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        made[which] = output.detach()

    sources = (
        {"q": attention.q_norm, "k": attention.k_norm} if attention.qk_norm else {"q": attention.q_proj, "k": attention.k_proj}
    )
    hooks = [module.register_forward_hook(partial(keep, which)) for which, module in sources.items()]
    return [*hooks, attention.register_forward_hook(partial(observer.logit_maximum, layer, made))]


def _largest_logit(q_bhtk: Tensor, k_bgtk: Tensor, mask: Tensor | None) -> Tensor:
    """Over all queries and the keys that they see, where the mask is 0; None is plain causal. A few rows of queries at a time."""
    b, h, t, k = q_bhtk.shape
    g = k_bgtk.shape[1]
    q_bgntk = q_bhtk.reshape(b, g, h // g, t, k)
    rows = max(1, _LOGITS // (b * h * t))
    best = torch.full((), -torch.inf, device=q_bhtk.device)
    positions = torch.arange(t, device=q_bhtk.device)
    for first in range(0, t, rows):
        stop = min(first + rows, t)
        logits = q_bgntk[..., first:stop, :] @ k_bgtk[:, :, None, :stop].transpose(-1, -2)
        seen = positions[:stop] <= positions[first:stop, None]
        if mask is not None:
            seen = (seen & (mask[..., first:stop, :stop] == 0))[:, :, None]
        best = torch.maximum(best, logits.masked_fill_(~seen, -torch.inf).amax())
    return best.div(k**0.5)


def _speed(group: dict[str, Any], step: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What a step of AdamW changed weights by, from the weights after it and the moments."""
    rate, decay, epsilon = float(group["lr"]), float(group["weight_decay"]), float(group["eps"])
    first, second = (1 - beta**step for beta in group["betas"])

    def change(weights: Tensor, mean: Tensor, square: Tensor) -> Tensor:
        moved = mean / ((square / second).sqrt_() + epsilon)
        return weights.mul(-rate * decay).sub_(moved, alpha=rate / first).div_(1 - rate * decay)

    return change


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Flat parts; none of an empty tensor."""
    flat = tensor.reshape(-1)
    return iter(flat.split(_CHUNK.get(tensor.device.type, 1 << 26))) if flat.numel() else iter(())  # type: ignore[no-untyped-call]


def _is_first_pass(output: Tensor) -> bool:
    """Not recomputation amid a backward pass, nor a pipeline that asks for shapes."""
    return output.device.type != "meta" and torch._C._current_graph_task_id() == -1

"""Faults of the model, its loss and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.doctor.fault import BASES, PLAIN, Fault, Plant, rules
from danlu.engines.base import StepResult
from danlu.engines.torch import decoder, engine
from danlu.engines.torch.decoder import MLP, Attention, Block, CausalLM, Decoder
from danlu.engines.torch.engine import TorchEngine


def on_start(change: Callable[[TorchEngine], None]) -> Plant:
    """Something is wrong with the engine from the beginning."""
    honest = TorchEngine.initialise

    def wrong(self: TorchEngine) -> None:
        honest(self)
        change(self)

    return lambda: patch.object(TorchEngine, "initialise", wrong)


def _weighed(weight: Callable[[int, int], float]) -> Plant:
    """The summed loss of each micro-batch is weighed by its supervised tokens and by the number of micro-batches."""

    @contextmanager
    def planted() -> Iterator[None]:
        honest, backward = TorchEngine._loss, TorchEngine._backward
        micro_batches = [1]

        def counting(self: TorchEngine, batch: Any) -> tuple[float, int]:
            micro_batches[0] = len(batch["inputs"])
            return backward(self, batch)

        def wrong(self: TorchEngine, batch: Any, scale: float, *rest: Any) -> Tensor:
            if torch.is_grad_enabled():
                scale = self.optimizer.loss_scale * weight(int((batch["targets"] != -100).sum()), micro_batches[0])
            return honest(self, batch, scale, *rest)

        with patch.object(TorchEngine, "_backward", counting), patch.object(TorchEngine, "_loss", wrong):
            yield

    return planted


def _zeroed_between() -> AbstractContextManager[Any]:
    """Gradients are zeroed ahead of each micro-batch, so that the last one's are left."""
    honest = TorchEngine._loss

    def wrong(self: TorchEngine, batch: Any, scale: float, *rest: Any) -> Tensor:
        if torch.is_grad_enabled():
            self.optimizer.adamw.zero_grad(set_to_none=True)
        return honest(self, batch, scale, *rest)

    return patch.object(TorchEngine, "_loss", wrong)


def _reported_sum() -> AbstractContextManager[Any]:
    honest = TorchEngine.train_step

    def wrong(self: TorchEngine, batch: Any, rate: float) -> StepResult:
        made = honest(self, batch, rate)
        return StepResult(made.loss * 2, made.supervised, made.gradient_norm, made.skipped, made.loss_scale)

    return patch.object(TorchEngine, "train_step", wrong)


def _shifted_in_the_loss() -> AbstractContextManager[Any]:
    honest = decoder.linear_cross_entropy

    def wrong(hidden: Tensor, weight: Tensor, targets: Tensor, *rest: Any) -> Tensor:
        if torch.is_grad_enabled():
            targets = torch.cat((targets[:, 1:], torch.full_like(targets[:, :1], -100)), 1)
        return honest(hidden, weight, targets, *rest)

    return patch.object(decoder, "linear_cross_entropy", wrong)


def _no_document_mask() -> AbstractContextManager[Any]:
    honest = decoder.attention_masks
    return patch.object(decoder, "attention_masks", lambda start, t, _documents, *rest: honest(start, t, None, *rest))


def _looks_ahead() -> AbstractContextManager[Any]:
    honest = functional.scaled_dot_product_attention

    def wrong(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, is_causal: bool = False) -> Tensor:
        mask = None if attn_mask is None else attn_mask.maximum(attn_mask.transpose(-1, -2))  # 0 or -inf
        return honest(q, k, v, attn_mask=mask)

    return patch.object(decoder.F, "scaled_dot_product_attention", wrong)


def _looks_ahead_in_training() -> AbstractContextManager[Any]:
    honest = functional.scaled_dot_product_attention

    def wrong(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, is_causal: bool = False) -> Tensor:
        if not torch.is_grad_enabled():
            return honest(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
        mask = None if attn_mask is None else attn_mask.maximum(attn_mask.transpose(-1, -2))  # 0 or -inf
        return honest(q, k, v, attn_mask=mask)

    return patch.object(decoder.F, "scaled_dot_product_attention", wrong)


def _half_precision_angles() -> AbstractContextManager[Any]:
    def wrong(self: Decoder, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = (positions[..., None, None].bfloat16() * self.frequencies.bfloat16()).float()
        return angles.cos(), angles.sin()

    return patch.object(Decoder, "_rotary", wrong)


def _no_positions() -> AbstractContextManager[Any]:
    return patch.object(decoder, "rotate", lambda x, *_: x)


def _frozen(part: str) -> Plant:
    def freeze(self: TorchEngine) -> None:
        for name, parameter in self.parameters.items():
            if part in name:
                parameter.requires_grad_(False)

    return on_start(freeze)


def _left_out(self: TorchEngine) -> None:
    """The optimizer was made before the second layer was there."""
    wanted = {id(parameter) for name, parameter in self.parameters.items() if "layers.1." in name}
    for group in self.optimizer.adamw.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in wanted]


def _detached() -> AbstractContextManager[Any]:
    """A detach() was left behind the first layer."""
    honest = Block.forward

    def wrong(self: Block, x: Tensor, *rest: Any) -> Tensor:
        made = honest(self, x, *rest)
        return made.detach() if self.self_attn.layer == 0 else made

    return patch.object(Block, "forward", wrong)


def _branch_off(kind: type[torch.nn.Module]) -> Plant:
    """What a part of the blocks computes is multiplied by 0."""
    honest: Any = kind.forward
    return lambda: patch.object(kind, "forward", lambda self, *rest: honest(self, *rest) * 0)


def _large_weights() -> AbstractContextManager[Any]:
    honest = engine.draw

    def wrong(*arguments: Any) -> Any:
        drawn = honest(*arguments)
        return 30 * drawn if drawn.ndim > 1 else drawn

    return patch.object(engine, "draw", wrong)


def _untied() -> AbstractContextManager[Any]:
    return patch.object(CausalLM, "tie", lambda self: None)


def _dropout_in_evaluation() -> AbstractContextManager[Any]:
    honest = TorchEngine.evaluate
    drawn = iter(range(10**9, 2 * 10**9, 1000))

    def wrong(self: TorchEngine, batch: Any) -> tuple[float, int]:
        first = next(drawn)
        return honest(self, {**batch, "samples": first + torch.arange(len(batch["inputs"]))})

    return patch.object(TorchEngine, "evaluate", wrong)


@contextmanager
def _stale_weights() -> Iterator[None]:
    """Evaluation uses the weights of the start."""
    honest, begin = TorchEngine.evaluate, TorchEngine.initialise
    kept: dict[str, Tensor] = {}

    def keeping(self: TorchEngine) -> None:
        begin(self)
        kept.update({name: parameter.detach().clone() for name, parameter in self.parameters.items()})

    @torch.no_grad()
    def wrong(self: TorchEngine, batch: Any) -> tuple[float, int]:
        now = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.copy_(kept[name])
        made = honest(self, batch)
        for name, parameter in self.parameters.items():
            parameter.copy_(now[name])
        return made

    with patch.object(TorchEngine, "initialise", keeping), patch.object(TorchEngine, "evaluate", wrong):
        yield


FROZEN = rules("unmoved_parameters")
FAULTS = (
    Fault(
        "accumulation not divided",
        "the losses of 4 micro-batches are added",
        rules("accumulation_mismatch", "first_loss"),
        BASES["accumulated"],
        _weighed(lambda supervised, _micro_batches: 1 / supervised),
    ),
    Fault(
        "micro-batches count alike",
        "a mean of their means, whatever their number of targets",
        rules("accumulation_mismatch"),
        BASES["accumulated"],
        _weighed(lambda supervised, micro_batches: 1 / supervised / micro_batches),
    ),
    Fault(
        "zeroed between micro-batches",
        "the gradients of the last micro-batch are left",
        rules("accumulation_mismatch"),
        BASES["accumulated"],
        _zeroed_between,
    ),
    Fault(
        "loss reported twice over",
        "the printed loss is a sum over two halves",
        rules("first_loss", "loss_mismatch"),
        PLAIN,
        _reported_sum,
    ),
    Fault(
        "labels shifted in the loss",
        "the loss shifts labels that are shifted",
        rules("label_offset", "loss_mismatch"),
        PLAIN,
        _shifted_in_the_loss,
    ),
    Fault("no document mask", "packed documents see each other", rules("document_leak"), PLAIN, _no_document_mask),
    Fault("attention looks ahead", "no causal mask", rules("future_leak"), PLAIN, _looks_ahead),
    Fault(
        "attention looks ahead in training",
        "no causal mask in training alone",
        rules("future_leak", "loss_mismatch"),
        PLAIN,
        _looks_ahead_in_training,
        visible=1,
    ),
    Fault("rotary angles in bf16", "positions are rounded", rules("rotary_precision"), BASES["bf16"], _half_precision_angles),
    Fault("no positions", "the rotation is left out", rules("positions_unused"), PLAIN, _no_positions),
    Fault("embedding frozen", "it needs no gradient", FROZEN, PLAIN, _frozen("embed_tokens")),
    Fault("a layer frozen", "the second layer needs no gradient", FROZEN, PLAIN, _frozen("layers.1.")),
    Fault("a layer not in the optimizer", "the second layer is left out", FROZEN, PLAIN, on_start(_left_out)),
    Fault("a detach left behind", "no gradient gets past the first layer", FROZEN, BASES["gentle"], _detached),
    Fault("attention off", "what attention adds is multiplied by 0", FROZEN, BASES["gentle"], _branch_off(Attention)),
    Fault("MLP off", "what the MLP adds is multiplied by 0", FROZEN, BASES["gentle"], _branch_off(MLP)),
    Fault("first weights too large", "30 times the deviation", rules("first_loss"), PLAIN, _large_weights),
    Fault("embeddings untied", "a wrapper copied the output embedding", rules("untied_embeddings"), BASES["tied"], _untied),
    Fault("dropout in evaluation", "evaluation drops too", rules("evaluation_varies"), BASES["dropout"], _dropout_in_evaluation),
    Fault("stale weights evaluated", "evaluation has the first weights", rules("loss_mismatch"), PLAIN, _stale_weights),
)

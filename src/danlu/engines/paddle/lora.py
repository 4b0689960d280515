"""Low-rank adapters put on the paddle model from the outside; danlu.model.adapters tells what they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.distributed.fleet.layers.mpu import mp_ops

from danlu.engines.paddle import sequence_parallel
from danlu.engines.paddle.decoder import CausalLM, linear
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.pieces import split_dimension
from danlu.engines.paddle.safetensors_file import Written, write_file
from danlu.engines.paddle.slices import array_of
from danlu.model import adapters
from danlu.model.adapters import DOWN, PREFIX, UP, is_adapter
from danlu.model.shape import ModelShape
from danlu.recipe.train_sections import LoraSection

Between = Callable[[Tensor], Tensor]
"""What is done to the few hidden numbers of an adapter between its matrices."""


def apply(model: CausalLM, settings: LoraSection, layout: Layout) -> None:
    """Put an adapter beside every linear layer of a stage's blocks that a target names.

    Behind Fleet's tensor parallelism, so that an adapter is split as its matrix is; auto-parallel splits both later.
    """
    for name, module in model.named_sublayers():
        if ".layers." in name and name.endswith("_proj") and any(adapters.named(name, target) for target in settings.targets):
            inputs, outputs = module.weight.shape
            module.add_sublayer(DOWN, linear(inputs, settings.rank, False))
            module.add_sublayer(UP, linear(settings.rank, outputs, False))
            module.register_forward_post_hook(partial(_add, settings.alpha / settings.rank, _between(name, layout)))


def freeze(model: CausalLM, reach: bool) -> None:
    """Train the adapters only.

    ``reach``: gradients go on to the embedding's output. Recomputation makes none behind a tensor that wants none, a pipeline
    waits for one of what it sends, and with ZeRO 3 a block's weights are let go when its input has its gradient.
    """
    for name, parameter in model.named_parameters():
        parameter.stop_gradient = not is_adapter(name)
    if reach and model.model.embed_tokens is not None:
        next(iter(model.model.layers.values())).register_forward_pre_hook(_let_gradients_come)


def _let_gradients_come(_block: nn.Layer, inputs: tuple[Any, ...]) -> None:
    inputs[0].stop_gradient = False


def _add(scale: float, between: Between | None, module: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    hidden = getattr(module, DOWN)(inputs[0])
    return output + scale * getattr(module, UP)(hidden if between is None else between(hidden))


def _between(name: str, layout: Layout) -> Between | None:
    """Of a matrix that tensor ranks split by rows the hidden numbers are parts of a sum; by columns their gradient is one.

    With a split sequence, each rank also has a part of it before columns and behind rows only.
    """
    if layout.tensor == 1 or layout.auto:
        return None
    by_columns = split_dimension(f"{name}.weight") == 0
    if layout.sequence_parallel:
        return sequence_parallel.join if by_columns else sequence_parallel.share_out
    return partial(mp_ops._c_identity if by_columns else mp_ops._mp_allreduce, group=layout.group("tensor"))


def shapes(shape: ModelShape, settings: LoraSection | None) -> dict[str, tuple[int, ...]]:
    """Of all adapters' tensors, as files have them. UserError: a target names no matrix of the model."""
    if settings is None:
        return {}
    adapters.check(shape, settings.targets)
    return adapters.adapter_shapes(shape, settings.targets, settings.rank)


def merged(parameters: Mapping[str, Tensor], settings: LoraSection | None, name: str) -> NDArray[np.float32]:
    """A tensor of the model, as files have it, with what its adapter adds, which is summed in float64."""
    own, stem = array_of(name, parameters[name]), name.removesuffix(".weight")
    if settings is None or (down := parameters.get(f"{stem}.{DOWN}.weight")) is None:
        return own
    added = _wide(f"{stem}.{UP}.weight", parameters[f"{stem}.{UP}.weight"]) @ _wide(f"{stem}.{DOWN}.weight", down)
    return (own.astype(np.float64) + settings.alpha / settings.rank * added).astype(np.float32)


def _wide(name: str, parameter: Tensor) -> NDArray[np.float64]:
    return array_of(name, parameter).astype(np.float64)


def write_adapter(parameters: Mapping[str, Tensor], settings: LoraSection, base: str, folder: Path) -> None:
    """adapter_model.safetensors and adapter_config.json, as PEFT reads them. OSError: they cannot be written."""
    found = {PREFIX + name: Written("F32", array_of(name, each)) for name, each in parameters.items() if is_adapter(name)}
    config = adapters.peft_config(parameters, settings.rank, settings.alpha, base)
    write_file(found, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

"""Data and tensor parallelism by paddle's auto-parallel: tensors that are spread over a mesh of processes by a plan.

The model is written for one process, and paddle puts messages between operators where their inputs lie otherwise than it needs
them. What is done here: the batch and the weights are laid out, each process takes the loss of its own rows (paddle has no rule
for that one, and would bring the hidden states of all processes together), and gets its own pieces of weights and gradients as
ordinary parameters. What becomes of those is the same with Fleet: reduction, ZeRO, the update, checkpoints and statistics.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.distributed.auto_parallel.api import dtensor_from_local, dtensor_to_local

from danlu.engines.paddle import dropout
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.generate import KeyValueCache
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.loss import linear_cross_entropy
from danlu.engines.paddle.vocabulary import VocabularyShard
from danlu.model.adapters import DOWN, UP
from danlu.model.shape import ModelShape

_COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_ROWS = ("self_attn.o_proj", "mlp.down_proj")
_WHOLE, _SUM = dist.Replicate(), dist.Partial(dist.ReduceType.kRedSum)
_BATCH, _HEADS = [dist.Shard(0), _WHOLE], [_WHOLE, dist.Shard(2)]
"""Where rows of a batch lie, and heads of attention (b, t, h, k): by data rank and by tensor rank."""


def plan() -> dict[str, Any]:
    """What paddle splits, and how: into the same pieces as Fleet's layers."""
    layers = {f"model.layers.*.{name}": dist.ColWiseParallel() for name in _COLUMNS}
    layers |= {f"model.layers.*.{name}": dist.RowWiseParallel() for name in _ROWS}
    layers |= {f"model.layers.*.{name}.{UP}": dist.ColWiseParallel() for name in _COLUMNS}
    layers |= {f"model.layers.*.{name}.{DOWN}": dist.RowWiseParallel() for name in _ROWS}
    return {"model.embed_tokens": dist.RowWiseParallel(), **layers, "lm_head": dist.ColWiseParallel()}


def filled(shape: ModelShape, layout: Layout) -> ModelShape:
    """With a vocabulary that is filled up to a multiple of the tensor ranks."""
    return shape.model_copy(update={"vocab_size": layout.tensor * -(-shape.vocab_size // layout.tensor)})


def apply(model: CausalLM, shape: ModelShape, layout: Layout) -> None:
    """Spread a model of the ``filled`` shape over the processes, by data and tensor rank as Fleet numbers them."""
    ranks = np.arange(layout.data * layout.tensor).reshape(layout.data, layout.tensor)
    mesh = dist.ProcessMesh(ranks, dim_names=["dp", "mp"])
    dist.auto_parallel.set_mesh(mesh)
    config: dict[str, Any] = {"dp_config": {"sharding_level": 0}}
    if layout.tensor > 1:
        config["mp_config"] = {"parallelize_plan": plan()}
        model.vocabulary = _Vocabulary(layout, shape.vocab_size)
    dist.parallelize(model, mesh=mesh, config=config)
    model.model.register_forward_pre_hook(partial(_spread_batch, mesh))
    model.cross_entropy = partial(_cross_entropy_of_own_rows, mesh)


class Pieces:
    """This process's pieces of a model's parameters: ordinary ones, in the same memory, whose gradients come from there."""

    def __init__(self, model: CausalLM, layout: Layout) -> None:
        self.layout, self.spread = layout, dict(model.named_parameters())
        self.own = {name: _piece(parameter) for name, parameter in self.spread.items()}

    def give_weights(self) -> None:
        """They are in the same memory."""

    @paddle.no_grad()
    def take_gradients(self) -> None:
        """Of the backward pass that has ended: of the rows of this data rank, as Fleet leaves them."""
        for name, parameter in self.spread.items():
            if parameter.stop_gradient:
                continue
            gradient, own = parameter.grad, self.own[name]
            by_data, by_tensor = gradient.placements[0], parameter.placements[1]
            made = dist.reshard(gradient, gradient.process_mesh, [by_data, by_tensor])._local_value()
            if not by_data.is_partial():  # paddle has had the sum made, which is averaged again
                made = made / self.layout.data
            own.grad = made if own.grad is None else own.grad.add_(made)
            parameter.grad = None


def _piece(parameter: Tensor) -> Tensor:
    local = parameter._local_value()
    piece = paddle.create_parameter(local.shape, local.dtype, name=parameter.name + ".piece")
    piece.get_tensor()._share_data_with(local.get_tensor())
    return piece


class Dropout(dropout.Dropout):
    """With masks that each process draws for its own rows; paddle's view of bits knows no spread tensors."""

    def keep(self, keys_bt: Tensor, half: int, d: int) -> Tensor:
        """(b, t, d) bool: what stays."""
        mesh = keys_bt.process_mesh
        return dtensor_from_local(super().keep(own(dist.reshard(keys_bt, mesh, _BATCH)), half, d), mesh, _BATCH)


class _Vocabulary(VocabularyShard):
    """This rank's part of the output embedding."""

    def whole(self, logits_btv: Tensor) -> Tensor:
        """The logits of all parts."""
        return own(dist.reshard(logits_btv, logits_btv.process_mesh, [_WHOLE, _WHOLE]))[..., : self.size]


class Cache(KeyValueCache):
    """Keys and values of this tensor rank's heads, the same on all data ranks."""

    def extend(self, layer: int, key_btgk: Tensor, value_btgk: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new positions after the ones before; return all."""
        mesh = key_btgk.process_mesh
        new = (own(dist.reshard(each, mesh, _HEADS)) for each in (key_btgk, value_btgk))
        keys, values = super().extend(layer, *new)
        return dtensor_from_local(keys.contiguous(), mesh, _HEADS), dtensor_from_local(values.contiguous(), mesh, _HEADS)


def own(tensor: Tensor) -> Tensor:
    """This process's piece of a tensor, where it is spread; of sums that are not made yet, the sums."""
    if not tensor.is_dist():
        return tensor
    made = [_WHOLE if each.is_partial() else each for each in tensor.placements]
    return dist.reshard(tensor, tensor.process_mesh, made)._local_value()


def _spread_batch(mesh: Any, _decoder: nn.Layer, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each data rank has its rows; of a prompt that is continued, all have all."""
    rows = [_WHOLE, _WHOLE] if any(isinstance(each, KeyValueCache) for each in inputs) else _BATCH
    return tuple(dtensor_from_local(each, mesh, rows) if isinstance(each, Tensor) else each for each in inputs)


def _cross_entropy_of_own_rows(
    mesh: Any,
    hidden_btd: Tensor,
    weight: Tensor,
    targets_bt: Tensor,
    scale: float,
    tied: bool,
    vocabulary: VocabularyShard | None,
) -> Tensor:
    """As ``linear_cross_entropy``. What each data rank differentiates the weight to is a part of the sum."""
    own_btd = dtensor_to_local(dist.reshard(hidden_btd, mesh, _BATCH), mesh, _BATCH)
    own_weight = dtensor_to_local(weight, mesh, [_SUM, weight.placements[1]])
    return linear_cross_entropy(own_btd, own_weight, targets_bt, scale, tied, vocabulary)

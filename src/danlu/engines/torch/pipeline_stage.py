"""A stage of a pipeline that holds what it receives no longer than it needs it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import _make_tensor_from_meta


class Stage(PipelineStage):
    """Makes the tensor for an activation or a gradient when it is about to arrive, and leaves it to the micro-batch.

    torch makes two for every micro-batch of a step beforehand and keeps them, many times what is in flight.
    """

    def _setup_forward_recv_info(self, *arguments: Any) -> None:
        with _Nowhere(self):
            super()._setup_forward_recv_info(*arguments)
        for infos in self.args_recv_info.values():
            _let_go(infos)

    def _create_grad_recv_info(self, *arguments: Any) -> Any:
        with _Nowhere(self):
            infos = super()._create_grad_recv_info(*arguments)
        _let_go(infos)
        return infos

    def _get_recv_ops(self, recv_infos: Any) -> Any:
        for info in recv_infos:
            if info.source is not None and info.buffer is None and info.tensor_meta is not None:
                info.buffer = _make_tensor_from_meta(info.tensor_meta, self.device)
        return super()._get_recv_ops(recv_infos)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        arrived = super()._retrieve_recv_activations(fwd_chunk_id)
        _let_go(self.args_recv_info[fwd_chunk_id])
        return arrived

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Tensor | None = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        if loss is not None:  # the schedule keeps it to the end of the step, and with its graph what the stage was given
            loss.detach_()

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        arrived = super()._retrieve_recv_grads(bwd_chunk_id)
        _let_go(self.grad_recv_info[bwd_chunk_id])
        return arrived


class _Nowhere:
    """While it is entered, the stage makes tensors without storage."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.device = stage, stage.device

    def __enter__(self) -> None:
        self.stage.device = torch.device("meta")

    def __exit__(self, *_: Any) -> None:
        self.stage.device = self.device


def _let_go(infos: Any) -> None:
    for info in infos:
        info.buffer = None

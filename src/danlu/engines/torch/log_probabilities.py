"""What a model makes of given tokens, one log-probability each, without its logits as a whole.

For objectives that are no sum over tokens: the gradient of each is only known once all are. So the backward pass makes the logits
of each chunk anew.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danlu.engines.torch.loss import IGNORED, Head, blocks, linear_gradients


def log_softmax(logits_nv: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Over the whole vocabulary, of which each rank of the group has a part."""
    if group is None:
        return torch.log_softmax(logits_nv, -1)
    largest = logits_nv.amax(-1, keepdim=True)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    total = (logits_nv - largest).exp().sum(-1, keepdim=True)
    dist.all_reduce(total, group=group)
    return logits_nv - largest - total.log()


class Targets:
    """Which entry of each row is the target, if this rank has it."""

    def __init__(self, targets_n: Tensor, head: Head) -> None:
        index_n1 = targets_n[:, None] - head.first_row
        self.mine = (index_n1 >= 0) & (index_n1 < head.weight_vd.shape[0])
        self.index = index_n1.clamp(0, head.weight_vd.shape[0] - 1)
        self.group = head.group

    def pick(self, values_nv: Tensor) -> Tensor:
        """(n, 1): the target's entry; 0 where nothing is supervised."""
        return summed(torch.where(self.mine, values_nv.gather(1, self.index), 0.0), self.group)

    def add(self, values_nv: Tensor, amount: float | Tensor) -> Tensor:
        """The amount, one or (n, 1), added to the target's entry in place."""
        return values_nv.scatter_add_(1, self.index, amount * self.mine.float())


def summed(value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Over the ranks with the other parts of the vocabulary, in place."""
    if group is not None:
        dist.all_reduce(value, group=group)
    return value


def linear_log_probabilities(head: Head, targets_n: Tensor) -> Tensor:
    """log softmax(hidden @ weight.T)[target] (n,) in FP32; 0 where the target is -100. Every rank of a group returns the same."""
    precise = head.in_precision()
    made: Tensor = _LogProbabilities.apply(precise.hidden_nd, precise.weight_vd, targets_n, head)  # type: ignore[no-untyped-call]
    return made


class _LogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, head: Head) -> Tensor:
        ctx.save_for_backward(hidden_nd, weight_vd, targets_n)
        ctx.group, ctx.first_row = head.group, head.first_row
        precise = Head(hidden_nd, weight_vd, head.group, head.first_row)
        made = torch.empty(len(targets_n), device=hidden_nd.device)
        with torch.autocast(hidden_nd.device.type, enabled=False):
            for rows in precise.chunks():
                logits_nv, targets = hidden_nd[rows] @ weight_vd.t(), targets_n[rows]
                for block in blocks(logits_nv):
                    log_q = log_softmax(logits_nv[block].float(), head.group)
                    made[rows][block] = Targets(targets[block], precise).pick(log_q)[:, 0]
        return made.mul_(targets_n != IGNORED)

    @staticmethod
    def backward(ctx: Any, grad_n: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_nd, weight_vd, targets_n = ctx.saved_tensors
        head = Head(hidden_nd, weight_vd, ctx.group, ctx.first_row)
        weights_n1 = (-grad_n * (targets_n != IGNORED))[:, None]

        def of_logits(logits_nv: Tensor, rows: slice) -> Tensor:
            for block in blocks(logits_nv):
                q = log_softmax(logits_nv[block].float(), head.group).exp_()
                gradient = Targets(targets_n[rows][block], head).add(q, -1.0)
                logits_nv[block] = gradient.mul_(weights_n1[rows][block])
            return logits_nv.new_zeros((), dtype=torch.float32)

        _, grad_hidden, grad_weight = linear_gradients(head, of_logits, True, ctx.needs_input_grad[1])
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight_vd.dtype), None, None

"""Output projection and cross-entropy in one function, so that the logits of a batch never exist as a whole.

A 128 K vocabulary makes the logits the largest tensor of a step. Here they are made a few rows at a time, and the
gradient of each piece is taken at once (the forward already knows it but for one scalar), as in Liger Kernel
(Hsu et al. 2024) and Cut Cross-Entropy (Wijmans et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

IGNORED = -100
CHUNK_BYTES = 32 << 20
"""Logits held at once, in the precision of the matrix products."""
BLOCK_BYTES = 4 << 20
"""FP32 softmax at once on a CPU: what its caches hold."""


class VocabularyShard:
    """The output embedding split by rows over the tensor ranks: each makes the logits of its part of the vocabulary."""

    def __init__(self, mesh: DeviceMesh, sequence_parallel: bool) -> None:
        self.mesh, self.sequence_parallel = mesh, sequence_parallel
        self.group = mesh.get_group()

    def whole_sequence(self, hidden_btd: Tensor) -> Tensor:
        """Collect the parts of the sequence that the ranks hold under sequence parallelism."""
        if not self.sequence_parallel:
            return hidden_btd
        split = DTensor.from_local(hidden_btd, self.mesh, [Shard(1)])
        return split.redistribute(placements=[Replicate()]).to_local()

    def first_row(self, vocabulary: int) -> int:
        """The first token of this rank's part (parts are cut as torch.chunk does)."""
        return min(vocabulary, -(-vocabulary // self.mesh.size()) * self.mesh.get_local_rank())


class _Known(torch.autograd.Function):
    """A scalar whose gradient with respect to one tensor was computed with it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.dtype, ctx.spent = tensor.dtype, False
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        assert not ctx.spent, "the gradient is scaled in place, so that backward runs once"
        ctx.spent = True
        (gradient,) = ctx.saved_tensors
        return gradient.to(ctx.dtype).mul_(grad), None, None


OfLogits = Callable[[Tensor, slice], Tensor]
"""Of some rows, whose logits (rows, v) it overwrites with the gradient of what it returns: their summed loss, a scalar."""


class Head(NamedTuple):
    """What logits are made of: hidden states (n, d), and the output embedding (v, d) or this rank's part of it."""

    hidden_nd: Tensor
    weight_vd: Tensor
    group: dist.ProcessGroup | None = None
    """Of the ranks that have the other parts of the vocabulary."""
    first_row: int = 0
    """The first token of this rank's part."""

    @classmethod
    def of(cls, hidden_btd: Tensor, weight_vd: Tensor, vocabulary: VocabularyShard | None) -> Self:
        """Of what a model has at its end; with a vocabulary shard the weight is a DTensor split by rows."""
        if vocabulary is None:
            return cls(hidden_btd.reshape(-1, hidden_btd.shape[-1]), weight_vd)
        assert isinstance(weight_vd, DTensor)
        hidden_btd = vocabulary.whole_sequence(hidden_btd)
        first_row = vocabulary.first_row(weight_vd.shape[0])
        return cls(hidden_btd.reshape(-1, hidden_btd.shape[-1]), weight_vd.to_local(), vocabulary.group, first_row)

    def in_precision(self) -> Self:
        """In the autocast precision, if there is one."""
        device = self.hidden_nd.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.hidden_nd.dtype
        return self._replace(hidden_nd=self.hidden_nd.to(dtype), weight_vd=self.weight_vd.to(dtype))

    def chunks(self) -> Iterator[slice]:
        """Rows whose logits are held at once."""
        rows = max(1, CHUNK_BYTES // (self.weight_vd.shape[0] * self.weight_vd.element_size()))
        for first in range(0, self.hidden_nd.shape[0], rows):
            yield slice(first, first + rows)


@torch.no_grad()
def linear_gradients(
    head: Head, of_logits: OfLogits, differentiate: bool, with_weight: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss and, with ``differentiate``, its gradients with respect to hidden states and, ``with_weight``, the weight."""
    head = head.in_precision()
    with torch.autocast(head.hidden_nd.device.type, enabled=False):
        weight, hidden = head.weight_vd, head.hidden_nd
        grad_hidden = torch.empty_like(hidden)
        grad_weight: Tensor | None = None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for rows in head.chunks():
            part_nd = hidden[rows]
            logits_nv = part_nd @ weight.t()
            total += of_logits(logits_nv, rows)
            if differentiate:
                torch.mm(logits_nv, weight, out=grad_hidden[rows])
            if differentiate and with_weight:
                piece_vd = (logits_nv.t() @ part_nd).float()
                grad_weight = piece_vd if grad_weight is None else grad_weight.add_(piece_vd)
        if differentiate and head.group is not None:
            dist.all_reduce(grad_hidden, group=head.group)  # each rank has seen its part of the vocabulary only
    return total, grad_hidden, grad_weight


def linear_loss(head: Head, of_logits: OfLogits) -> Tensor:
    """The sum of what ``of_logits`` makes of all rows, a scalar; every rank of a vocabulary's group returns the same."""
    differentiate = torch.is_grad_enabled() and (head.hidden_nd.requires_grad or head.weight_vd.requires_grad)
    total, grad_hidden, grad_weight = linear_gradients(head, of_logits, differentiate, head.weight_vd.requires_grad)
    if not differentiate:
        return total
    # Two nodes in the graph: a zero-bubble pipeline asks for the gradient of the hidden states first and of the weight later.
    of_hidden: Tensor = _Known.apply(head.hidden_nd, total, grad_hidden)  # type: ignore[no-untyped-call]
    if grad_weight is None:  # the weight is frozen
        return of_hidden
    of_weight: Tensor = _Known.apply(head.weight_vd, torch.zeros_like(total), grad_weight)  # type: ignore[no-untyped-call]
    return of_hidden + of_weight


def linear_cross_entropy(
    hidden_btd: Tensor, weight_vd: Tensor, targets_bt: Tensor, scale: float = 1.0, vocabulary: VocabularyShard | None = None
) -> Tensor:
    """scale x the sum over supervised targets of -log softmax(hidden @ weight.T)[target], a scalar in nats.

    hidden_btd (b, t, d); weight_vd (v, d); targets_bt int64, -100 where nothing is supervised.
    Matrix products run in the autocast precision if there is one; the softmax is FP32. With a vocabulary shard the weight is
    a DTensor split by rows, and every rank of its group returns the same loss.
    """
    head, targets_n = Head.of(hidden_btd, weight_vd, vocabulary), targets_bt.reshape(-1)
    return linear_loss(head, lambda logits_nv, rows: cross_entropy(logits_nv, targets_n[rows], scale, head))


def cross_entropy(logits_nv: Tensor, targets_n: Tensor, scale: float, head: Head) -> Tensor:
    """scale x the summed loss of some rows; the logits are overwritten by its gradient."""
    if head.group is None:
        return _cross_entropy(logits_nv, targets_n, scale)
    return _sharded_cross_entropy(logits_nv, targets_n, scale, head.group, head.first_row)


Criterion = Callable[[Tensor, Tensor, Tensor, float, VocabularyShard | None], Tensor]
"""What a model ends in when it is trained: the arguments and the result of ``linear_cross_entropy``."""


def blocks(logits_nv: Tensor) -> Iterator[slice]:
    """Rows whose FP32 softmax is made at once: of a chunk, those that a CPU's caches hold."""
    rows = max(1, BLOCK_BYTES // (4 * logits_nv.shape[1])) if logits_nv.device.type == "cpu" else logits_nv.shape[0]
    for first in range(0, logits_nv.shape[0], rows):
        yield slice(first, first + rows)


def _cross_entropy(logits_nv: Tensor, targets_n: Tensor, scale: float) -> Tensor:
    """scale x the summed loss; the logits are overwritten by its gradient."""
    supervised = (targets_n != IGNORED)[:, None]
    index = targets_n.clamp(min=0)[:, None]
    total = torch.zeros((), dtype=torch.float32, device=logits_nv.device)
    for block in blocks(logits_nv):
        logits = logits_nv[block].float()
        # log-sum-exp from the softmax that the gradient needs anyway: the largest probability is 1 / sum(exp(x - max)).
        target_logit, largest = logits.gather(1, index[block]), logits.amax(-1, keepdim=True)
        gradient = torch.softmax(logits, -1)
        loss = largest - gradient.amax(-1, keepdim=True).log() - target_logit
        total += (loss * supervised[block]).sum()
        gradient.scatter_add_(1, index[block], torch.full_like(loss, -1.0))
        logits_nv[block] = gradient.mul_(supervised[block] * scale)
    return total * scale


def _sharded_cross_entropy(
    logits_nv: Tensor, targets_n: Tensor, scale: float, group: dist.ProcessGroup, first_row: int
) -> Tensor:
    """``_cross_entropy`` where each rank has some columns: the largest logit, the sum and the target's logit cross the group."""
    supervised = (targets_n != IGNORED)[:, None]
    index = targets_n[:, None] - first_row
    mine = (index >= 0) & (index < logits_nv.shape[1])
    index = index.clamp(0, logits_nv.shape[1] - 1)
    logits = logits_nv.float()
    largest = logits.amax(-1, keepdim=True)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    target_logit = torch.where(mine, logits.gather(1, index), 0.0)
    gradient = (logits - largest).exp_()
    sums = torch.cat((gradient.sum(-1, keepdim=True), target_logit), 1)
    dist.all_reduce(sums, group=group)
    total, target_logit = sums[:, :1], sums[:, 1:]
    gradient.div_(total).scatter_add_(1, index, -mine.float())
    logits_nv.copy_(gradient.mul_(supervised * scale))
    return ((largest + total.log() - target_logit) * supervised).sum() * scale

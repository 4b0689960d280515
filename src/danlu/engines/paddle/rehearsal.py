"""Fleet on CPUs: what stands in for the parts of it that only work with GPUs, so that a layout can be rehearsed on a laptop.

Only where tensors travel is replaced, never what is computed: a collective that gloo lacks is made of those that it has, in the
same order and on the same values. Each substitute says which symbol of paddle it replaces and why, and ``begin`` fails where a
new version of paddle has moved one.
"""

from __future__ import annotations

import functools
import os
import socket
from typing import Any, NamedTuple

import paddle
from paddle import Tensor
from paddle.base import core
from paddle.distributed import ParallelEnv, collective
from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_fully_shard

from danlu.errors import DanluError

_GLOO, _NOW = core.ProcessGroupGloo, True


class Substitute(NamedTuple):
    """A function in the place of ``holder.name``."""

    holder: Any
    name: str
    why: str
    function: Any


def _all_reduce(group: Any, tensor: Tensor, operation: Any) -> Any:
    return _ended(group.all_reduce(tensor, operation, _NOW))


def _broadcast(group: Any, tensor: Tensor, source: int) -> Any:
    return _ended(group.broadcast(tensor, source, _NOW))


def _all_gather(group: Any, out: Tensor, tensor: Tensor) -> Any:
    return _ended(group.all_gather_into_tensor(out, tensor, _NOW))


def _reduce_scatter(group: Any, out: Tensor, whole: Tensor, operation: Any, _sync: bool = _NOW) -> Any:
    """All get the whole sum and keep their part."""
    summed = whole.clone()
    task = _ended(group.all_reduce(summed, operation, _NOW))
    rows = out.shape[0]
    paddle.assign(summed[group.rank() * rows : (group.rank() + 1) * rows], out)
    return task


def _identity(tensor: Tensor, *_ring: Any) -> Tensor:
    return paddle.assign(tensor)


def _cross_entropy(logits_nv: Tensor, label_n1: Tensor, ignored: int, ring: int, rank: int, _ranks: int) -> tuple[Tensor, Tensor]:
    """(softmax, loss) of a part of the vocabulary, as the kernel defines them: the largest logit, the sum of exponentials and
    the logit of the label come from all parts."""
    group = collective._get_group_map()[ring].process_group
    largest = logits_nv.max(-1, keepdim=True)
    _all_reduce(group, largest, core.ReduceOp.MAX)
    shifted = logits_nv - largest
    exponentials = shifted.exp()
    total = exponentials.sum(-1, keepdim=True)
    _all_reduce(group, total, core.ReduceOp.SUM)
    row, size = label_n1 - rank * logits_nv.shape[-1], logits_nv.shape[-1]
    here = (row >= 0) & (row < size)
    chosen = paddle.take_along_axis(shifted, row.clip(0, size - 1), -1)
    chosen = paddle.where(here, chosen, paddle.zeros_like(chosen))
    _all_reduce(group, chosen, core.ReduceOp.SUM)
    loss = paddle.where(label_n1 != ignored, total.log() - chosen, paddle.zeros_like(chosen))
    return exponentials / total, loss


_new_group = collective._new_process_group_impl
_PAIRS = 1_000_000
"""Above all numbers of groups: those of a group's pairs of ranks."""


class _Group(NamedTuple):
    """What a process group was made of, and what must live as long as it does."""

    group: Any
    store: Any
    own: Any
    rank: int
    name: str
    number: int


_made: list[_Group] = []


def _group_with_a_store(backend: str, store: Any, rank: int, size: int, name: str, *rest: Any, **named: Any) -> Any:
    """Where the members of the group meet and nobody else does; the first of them tells where that is."""
    if rank == 0:
        with socket.socket() as trial:
            trial.bind(("", 0))
            port = trial.getsockname()[1]
        store.set(f"danlu/{name}", f"{_own_address()}:{port}")
    host, _, port = store.get(f"danlu/{name}").decode().rpartition(":")
    own = core.TCPStore(host, int(port), rank == 0, size)
    made = _new_group(backend, own, rank, size, name, *rest, **named)
    _made.append(_Group(made, store, own, rank, name, named["group_id"]))
    return made


@functools.cache
def _pair(group: Any, source: int, to: int) -> Any:
    """The group of two ranks of a group, for messages in one direction."""
    whole = next(each for each in _made if each.group is group)
    number = _PAIRS + (whole.number << 16) + (source << 8) + to
    place = 0 if whole.rank == source else 1
    return _group_with_a_store("gloo", whole.store, place, 2, f"{whole.name}-{source}-{to}", pg_options=None, group_id=number)


def _send(group: Any, tensor: Tensor, to: int, sync: bool = _NOW) -> Any:
    return core.ProcessGroup.send(_pair(group, group.rank(), to), tensor, 1, sync)


def _receive(group: Any, tensor: Tensor, source: int, sync: bool = _NOW) -> Any:
    return core.ProcessGroup.recv(_pair(group, source, group.rank()), tensor, 0, sync)


def _own_address() -> str:
    """Of this machine, as the first one sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        trial.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing
        return str(trial.getsockname()[0])


def _ended(task: Any) -> Any:
    task.wait()
    return task


class _Compiled:
    """Paddle's core, but as if it were compiled for GPUs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(core, name)

    def is_compiled_with_cuda(self) -> bool:
        return True


_STREAMS = "gloo has no calculation stream to order it on; the host waits instead"
_TAGS = "gloo numbers the messages of a group, and the numbers of two ranks differ once one has talked to a third"
_KERNEL = "there is a GPU kernel only"
SUBSTITUTES = (
    Substitute(_GLOO, "all_reduce_on_calc_stream", _STREAMS, _all_reduce),
    Substitute(_GLOO, "broadcast_on_calc_stream", _STREAMS, _broadcast),
    Substitute(_GLOO, "send", _TAGS, _send),
    Substitute(_GLOO, "recv", _TAGS, _receive),
    Substitute(_GLOO, "all_gather_into_tensor_on_calc_stream", _STREAMS, _all_gather),
    Substitute(_GLOO, "reduce_scatter_tensor", "gloo has none", _reduce_scatter),
    Substitute(
        collective,
        "_new_process_group_impl",
        "gloo's groups leave their addresses under the same names in one store, so that a group may meet the one before",
        _group_with_a_store,
    ),
    Substitute(
        group_sharded_fully_shard,
        "core",
        "FullyShard ends where paddle is not compiled for GPUs, though all that it does works on CPUs",
        _Compiled(),
    ),
    Substitute(ParallelEnv, "device_id", "it is set where paddle is compiled for GPUs only", property(lambda _: 0)),
    Substitute(paddle._C_ops, "c_identity", _KERNEL, _identity),
    Substitute(paddle._C_ops, "c_softmax_with_cross_entropy", _KERNEL, _cross_entropy),
)


@functools.cache
def begin() -> None:
    """Put the substitutes into paddle. DanluError: it has no such symbol (any more)."""
    for each in SUBSTITUTES:
        if not hasattr(each.holder, each.name):
            where = getattr(each.holder, "__name__", str(each.holder))
            raise DanluError(
                f"paddle {paddle.__version__} has no {where}.{each.name}, which the rehearsal on CPUs stands in for; "
                "use the version that danlu is made for, or train on GPUs"
            )
    for each in SUBSTITUTES:
        setattr(each.holder, each.name, each.function)

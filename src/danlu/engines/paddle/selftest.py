"""Before the first step: every group of a layout is tried with numbers whose sums are known."""

from __future__ import annotations

import paddle
import paddle.distributed as dist

from danlu.engines.paddle.layout import Layout
from danlu.errors import DanluError

SIZE = 1024


def run(layout: Layout) -> None:
    """All-reduce and all-gather in every group, and a message from each pipeline rank to the next.

    A rank's numbers are its global rank + 1 + the position, all exact in FP32. DanluError: a wrong result, with the group.
    """
    positions = paddle.arange(SIZE, dtype="float32")
    for name in ("data", "tensor", "pipeline"):
        if getattr(layout, name) == 1:
            continue
        group = layout.group(name)
        own = positions + (layout.rank + 1)
        total = own.clone()
        dist.all_reduce(total, group=group)
        _check(layout, name, "all-reduce", total, positions * group.nranks + float(sum(group.ranks) + group.nranks))
        parts: list[paddle.Tensor] = []
        dist.all_gather(parts, own, group=group)
        for rank, part in zip(group.ranks, parts, strict=True):
            _check(layout, name, "all-gather", part, positions + (rank + 1))
        if name == "pipeline":
            place = group.ranks.index(layout.rank)
            if place > 0:
                received = paddle.empty([SIZE])
                dist.recv(received, group.ranks[place - 1], group=group)
                _check(layout, name, "send/receive", received, positions + (group.ranks[place - 1] + 1))
            if place < group.nranks - 1:
                dist.send(own, group.ranks[place + 1], group=group)


def _check(layout: Layout, name: str, operation: str, got: paddle.Tensor, wanted: paddle.Tensor) -> None:
    if not bool((got == wanted).all()):
        ranks = ", ".join(map(str, layout.group(name).ranks))
        raise DanluError(f"self-test of group {name} (ranks {ranks}), {operation} on rank {layout.rank}: wrong result")

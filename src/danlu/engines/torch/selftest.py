"""Before the first step: every group of a layout is tried with numbers whose sums are known."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store, _get_default_store

from danlu.engines.torch.layout import Layout
from danlu.errors import DanluError

SECONDS = 120.0
"""How long an operation may take: the first one of a group opens its connections."""
SIZE = 1024


def groups(layout: Layout, pair: dist.ProcessGroup | None) -> dict[str, dist.ProcessGroup]:
    """The groups that this process talks to, by name; ``pair`` is that of tied embeddings on both ends of a pipeline."""
    if layout.mesh is None:
        return {}
    assert dist.group.WORLD is not None
    found = {"world": dist.group.WORLD}
    for name in ("data", "tensor", "pipeline"):
        if getattr(layout, name) > 1:
            found[name] = layout.group(name)
    return found | ({"tied embeddings": pair} if pair is not None else {})


def run(layout: Layout, device: torch.device, pair: dist.ProcessGroup | None = None, seconds: float = SECONDS) -> None:
    """All-reduce, all-gather and reduce-scatter in every group, and messages between pipeline neighbours.

    DanluError: a wrong result, or no answer in time; with the group, its ranks and the operation.
    """
    for name, group in groups(layout, pair).items():
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1:
            trial = _Trial(name, group, ranks, device, seconds)
            trial.all_reduce()
            trial.all_gather()
            trial.reduce_scatter()
            if name == "pipeline":
                trial.neighbours()


class _Trial:
    """The operations of one group. A rank's numbers are its global rank + 1 + the position, all exact in FP32."""

    def __init__(self, name: str, group: dist.ProcessGroup, ranks: list[int], device: torch.device, seconds: float) -> None:
        self.name, self.group, self.ranks, self.seconds = name, group, ranks, seconds
        self.place, self.count = ranks.index(dist.get_rank()), len(ranks)
        self.positions = torch.arange(SIZE, dtype=torch.float32, device=device)
        self.own = self.positions + ranks[self.place] + 1
        self.sum = self.positions * self.count + sum(ranks) + self.count

    def all_reduce(self) -> None:
        value = self.own.clone()
        self._do("all-reduce", lambda: dist.all_reduce(value, group=self.group))
        self._check("all-reduce", value, self.sum)

    def all_gather(self) -> None:
        value = torch.empty(self.count * SIZE, device=self.own.device)
        self._do("all-gather", lambda: dist.all_gather_single(value, self.own, group=self.group))
        self._check("all-gather", value, torch.cat([self.positions + rank + 1 for rank in self.ranks]))

    def reduce_scatter(self) -> None:
        value = torch.empty(SIZE, device=self.own.device)
        whole = torch.cat([self.own * (place + 1) for place in range(self.count)])
        self._do("reduce-scatter", lambda: dist.reduce_scatter_single(value, whole, group=self.group))
        self._check("reduce-scatter", value, self.sum * (self.place + 1))

    def neighbours(self) -> None:
        """Each place sends to the next one and receives from the one before, around the ring."""
        value = torch.empty(SIZE, device=self.own.device)
        after, before = self.ranks[(self.place + 1) % self.count], self.ranks[self.place - 1]
        operations = [dist.P2POp(dist.isend, self.own, after, self.group), dist.P2POp(dist.irecv, value, before, self.group)]
        self._do("send/receive", lambda: dist.batch_isend_irecv(operations))
        self._check("send/receive", value, self.positions + before + 1)

    def _do(self, operation: str, call: Callable[[], Any]) -> None:
        """Call it in a thread, so that one that never answers can be left. Who stays away is known from the store."""
        store, key = _get_default_store(), f"self-test/{self.name}/{operation}"
        store.set(f"{key}/{dist.get_rank()}", "here")
        failed: list[Exception] = []

        def complete() -> None:
            try:
                for work in call() or ():
                    work.wait()
                if self.own.is_cuda:  # a collective is only queued there
                    torch.cuda.synchronize(self.own.device)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=complete, daemon=True)
        thread.start()
        thread.join(self.seconds)
        if thread.is_alive():
            raise self._error(operation, f"no answer within {self.seconds:g} seconds{self._absent(store, key)}")
        if failed:
            said = " ".join(str(failed[0]).split())[:200]
            raise self._error(operation, f"failed: {said}{self._absent(store, key)}") from failed[0]

    def _absent(self, store: Store, key: str) -> str:
        absent = [str(rank) for rank in self.ranks if not store.check([f"{key}/{rank}"])]
        return f"; not come: rank {', '.join(absent)}" if absent else "; all ranks have come"

    def _check(self, operation: str, got: Tensor, wanted: Tensor) -> None:
        wrong = (got != wanted).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise self._error(operation, f"wrong result at {at}: {got[at].item():g}, not {wanted[at].item():g}")

    def _error(self, operation: str, text: str) -> DanluError:
        ranks = ", ".join(map(str, self.ranks))
        return DanluError(f"self-test of group {self.name} (ranks {ranks}), {operation} on rank {dist.get_rank()}: {text}")

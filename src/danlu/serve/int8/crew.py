"""Threads that compute one step together: each runs the same compiled function for its share, and waits for the others between.

Compiled code runs without the interpreter's lock. What is waited for takes microseconds, so it is waited for without sleep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from danlu.serve.int8.vectors import I32, call

Counter = NDArray[np.int64]
_PATIENCE = 4096
"""Looks at the counter before the processor is left to others, as there may be more threads than cores."""


class Crew:
    """The calling thread and others, which live as long as this."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._jobs: list[SimpleQueue[Callable[[], object] | None]] = [SimpleQueue() for _ in range(threads - 1)]
        for number, jobs in enumerate(self._jobs, 1):
            threading.Thread(target=_work, args=[jobs], name=f"int8-{number}", daemon=True).start()

    def run(self, function: Callable[..., object], *arguments: object) -> None:
        """function(*arguments, arrived, thread, threads) in every thread; `meet` takes the last."""
        arrived, done = np.zeros(1, np.int64), SimpleQueue[BaseException | None]()
        for number, jobs in enumerate(self._jobs, 1):
            jobs.put(_job(function, (*arguments, arrived, number, self.threads), done))
        function(*arguments, arrived, 0, self.threads)
        for _ in self._jobs:
            if (fault := done.get()) is not None:
                raise fault

    def __del__(self) -> None:
        for jobs in self._jobs:
            jobs.put(None)


def _job(function: Callable[..., object], arguments: tuple[object, ...], done: SimpleQueue[Any]) -> Callable[[], None]:
    def run() -> None:
        try:
            function(*arguments)
            done.put(None)
        except BaseException as fault:
            done.put(fault)

    return run


def _work(jobs: SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep its arrays until the next


@numba.njit(cache=True, error_model="numpy")
def meet(arrived: Counter, goal: int, threads: int) -> int:
    """Wait until all threads are here. ``goal`` is what this returned before, at first 0."""
    goal += threads
    if threads > 1:
        _arrive(arrived)
        looks = 0
        while _look(arrived) < goal:
            looks += 1
            if looks % _PATIENCE == 0:
                _leave_processor()
            else:
                _pause()
    return goal


@intrinsic
def _arrive(_: Any, counter: Any) -> Any:
    """Count one more; what this thread wrote before is seen by those who see the count."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0]).data
        builder.atomic_rmw("add", data, ir.Constant(ir.IntType(64), 1), "seq_cst")
        return context.get_dummy_value()

    return types.void(counter), generate


@intrinsic
def _look(_: Any, counter: Any) -> Any:
    """The count."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(data, "acquire", 8)

    return types.int64(counter), generate


@intrinsic
def _pause(_: Any) -> Any:
    """Tell the processor that this is a loop that waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _leave_processor(_: Any) -> Any:
    """Let other threads run."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call(builder, "sched_yield", I32)
        return context.get_dummy_value()

    return types.void(), generate

"""Calls in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any


def each(jobs: Iterable[tuple[Any, ...]], workers: int) -> Iterator[tuple[int, Any]]:
    """Call job[0](*job[1:]) for all jobs, in processes if there are several; yield number and result as they come."""
    if workers <= 1:
        for number, (function, *arguments) in enumerate(jobs):
            yield number, function(*arguments)
        return
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy threads and locks in any state
    context.set_forkserver_preload(["danlu.data.curate.shard", "danlu.data.dedup.kernels"])
    with ProcessPoolExecutor(workers, context) as pool:
        waiting = {}
        for number, (function, *arguments) in enumerate(jobs):
            waiting[pool.submit(function, *arguments)] = number
            if len(waiting) >= 2 * workers:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield waiting.pop(future), future.result()
        for future in list(waiting):
            yield waiting[future], future.result()


def in_order(jobs: Iterable[tuple[Any, ...]], workers: int) -> list[Any]:
    """The results of all jobs, in their order."""
    return [result for _, result in sorted(each(jobs, workers), key=lambda pair: pair[0])]

"""Calls in this process, in several, or on a Ray cluster."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

from danlu.data.curate.on_ray import Job, each_on_ray
from danlu.data.progress import EVERY, amount


@dataclass(frozen=True)
class Workers:
    """Who does the work; it changes nothing in the result."""

    count: int = 1
    """Processes; on Ray tasks at a time, 0: as many as the cluster takes."""
    executor: Literal["local", "ray"] = "local"


def settle(load: Callable[[], object]) -> None:
    """Call `load`, and keep all that is in memory then out of the collector's sight, to the end of the process.

    Modules and compiled code are a few hundred thousand objects that stay; to look through them again and again, and once
    more at the end, takes a tenth of the time of a small job.
    """
    gc.disable()
    try:
        load()
    finally:
        gc.enable()
    gc.freeze()


def each(jobs: Iterable[Job], workers: Workers) -> Iterator[tuple[int, Any]]:
    """Call job[0](*job[1:]) for all jobs; yield number and result as they come.

    Raises:
        BrokenProcessPool: a worker was killed; on Ray: again and again.
    """
    if workers.executor == "ray":
        yield from each_on_ray(jobs, workers.count)
        return
    if workers.count <= 1:
        for number, (function, *arguments) in enumerate(jobs):
            yield number, function(*arguments)
        return
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy threads and locks in any state
    context.set_forkserver_preload(["danlu.data.curate.shard", "danlu.data.dedup.kernels", "danlu.data.json_scan"])
    with ProcessPoolExecutor(workers.count, context, initializer=gc.freeze) as pool:
        waiting = {}
        for number, (function, *arguments) in enumerate(jobs):
            waiting[pool.submit(function, *arguments)] = number
            if len(waiting) >= 2 * workers.count:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield waiting.pop(future), future.result()
        for future in list(waiting):
            yield waiting[future], future.result()


def in_order(results: Iterable[tuple[int, Any]]) -> list[Any]:
    """Results that come with their numbers, in the order of those."""
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]


def told(results: Iterable[tuple[int, Any]], sizes: Sequence[int], report: Callable[[str], None]) -> None:
    """Wait for all results, and report now and then how far it is; sizes: bytes that each stands for."""
    began = last = time.monotonic()
    total, done = sum(sizes), 0
    for number, _ in results:
        done += sizes[number]
        now = time.monotonic()
        if now - last >= EVERY and done < total:
            last = now
            left = (now - began) * (total - done) / max(1, done)
            report(f"curating: {done / total:.0%}, {amount(done / (now - began))}/s, {left:.0f} s left")

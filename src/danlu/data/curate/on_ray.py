"""The passes of curation as tasks of a Ray cluster: Ray starts them, and starts them again when a worker is lost.

All machines must see the sources and the folder of the result under the same paths. Ray itself carries only paths and counts.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from danlu.errors import UserError

Job = tuple[Any, ...]
"""A function, which can be pickled, and its arguments."""


def each_on_ray(jobs: Iterable[Job], workers: int) -> Iterator[tuple[int, Any]]:
    """Call job[0](*job[1:]) for all jobs; yield number and result as they come. workers: at most so many at a time; 0: no limit
    but the cluster's.

    A job must give the same when it is called again after it was broken off, as those of curation do.

    Raises:
        BrokenProcessPool: a job lost its worker again and again.
    """
    ray = _connected()
    call = ray.remote(max_retries=3)(_called)
    at_once = workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    here = os.getcwd()
    waiting: dict[Any, int] = {}
    try:
        for number, job in enumerate(jobs):
            waiting[call.remote(here, *job)] = number
            if len(waiting) >= at_once:
                yield from _finished(ray, waiting)
        while waiting:
            yield from _finished(ray, waiting)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise BrokenProcessPool(str(error)) from None
    finally:
        for task in waiting:
            ray.cancel(task)


def _connected() -> Any:
    """Ray, joined to the cluster that RAY_ADDRESS names or that runs on this machine, else to one started here."""
    try:
        import ray
    except ImportError:
        raise UserError("data.executor: ray is not installed; pip install 'danlu[ray]', or set it to local") from None
    if not ray.is_initialized():
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, OSError) as error:
            raise UserError(f"data.executor: no Ray cluster can be joined or started: {error}") from None
    return ray


def _called(here: str, function: Any, *arguments: Any) -> Any:
    """A job, in a worker; paths may be relative to `here`, the folder of who started it."""
    os.chdir(here)
    gc.freeze()
    return function(*arguments)


def _finished(ray: Any, waiting: dict[Any, int]) -> Iterator[tuple[int, Any]]:
    done, _ = ray.wait(list(waiting))
    for task in done:
        yield waiting.pop(task), ray.get(task)

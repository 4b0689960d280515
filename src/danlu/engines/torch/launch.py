"""Start this machine's ranks with torchrun's agent, and say which one failed if one does."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from danlu.engines.torch.in_flight import FLIGHT_RECORDER
from danlu.environment import Nodes
from danlu.errors import DanluError, Interrupted
from danlu.launch import cause
from danlu.launch.cause import AFTER, Cause

TAIL_LINES = 30
SAVE_SECONDS = 180
"""How long ranks may take to save after somebody has stopped the run; where one has failed, the watchdog is quicker."""
ELSEWHERE_SECONDS = 3.0
"""How long to wait for the word of another machine, when the ranks here only lost their connection."""
MEET_SECONDS = 1800
"""How long machines wait for each other; the first one prepares the data meanwhile, if that is still to be done."""


def launch(run: Path, logs: Path, place: Path, own: range, nodes: Nodes) -> None:
    """Run ``danlu worker RUN`` on the ranks ``own`` of this machine until all are done; what rank 0 prints is printed here.

    ``logs`` is where all ranks leave what ended them, ``place`` what those of this machine print.

    DanluError: a rank failed, here or elsewhere, with its own message and exit code, or its last lines. Interrupted: somebody
    ended it.
    """
    # Threads of several processes on the same cores would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(own))))
    if nodes.count == 1:
        meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": nodes.rendezvous, "local_addr": "127.0.0.1"}
    else:  # the ranks of the machines are in the order of their numbers
        meeting = {"rdzv_backend": "static", "rdzv_endpoint": nodes.rendezvous}
    os.environ.setdefault(*FLIGHT_RECORDER)
    config = LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=len(own),
        run_id=run.name,
        rdzv_configs={"rank": nodes.rank, "timeout": MEET_SECONDS},
        max_restarts=0,
        shutdown_timeout=SAVE_SECONDS,
        logs_specs=DefaultLogsSpecs(
            log_dir=str(place),
            redirects={local: Std.ALL if rank else Std.ERR for local, rank in enumerate(own)},
        ),
        **meeting,  # type: ignore[arg-type]
    )
    logging.disable(logging.ERROR)  # the agent's account of which process got which signal; what a person needs is raised
    try:
        elastic_launch(config, sys.executable)("-m", "danlu", "worker", str(run))
    except ChildFailedError as failed:
        raise _explained(failed, logs, place) from None
    except DistError as error:
        why = " ".join(str(error).split())[:200]
        text = f"machines {nodes.count}, this is {nodes.rank}: they did not meet at {nodes.rendezvous} ({why})"
        raise DanluError(f"{text}; start all of them, and name the first one and a free port there") from None
    except SignalException:
        stopped = Interrupted("stopped; run the same command to go on from the last checkpoint")
        told = cause.found(logs)
        raise told[0].error if told and not told[0].consequence else stopped from None
    finally:
        logging.disable(logging.NOTSET)


def _explained(failed: ChildFailedError, logs: Path, place: Path) -> DanluError:
    """What ended the rank that failed on its own account; its traceback or last lines are printed."""
    for rank, failure in sorted(failed.failures.items()):
        silent = not (logs / f"error-{rank}.json").exists()
        if silent and failure.exitcode not in (0, -15):
            # Its end belongs to the others on other machines too.
            cause.leave(logs, _without_a_word(rank, failure, place))
    until = time.monotonic() + ELSEWHERE_SECONDS
    while all(each.consequence for each in cause.found(logs)) and time.monotonic() < until:
        time.sleep(0.1)
    causes = cause.found(logs)
    if not causes:
        return DanluError(f"the ranks were stopped from outside; see {logs}")
    first = causes[0]
    if first.traceback:
        print(first.traceback.rstrip(), file=sys.stderr)
    return first.error


def _without_a_word(rank: int, failure: ProcessFailure, place: Path) -> Cause:
    """A rank that was killed, or ended outside of Python; with its last lines in place of a traceback."""
    output = sorted(place.glob(f"**/{failure.local_rank}/stderr.log"))
    lines = output[-1].read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:] if output else []
    code = failure.exitcode
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code} and no error"
    if code == -9:
        how += " (as the kernel does when memory runs out)"
        lines = []  # it had no time to say why
    when = time.time_ns() if code == -6 else 1  # an abort may follow from another rank's end, all else comes before it
    return Cause(rank, f"rank {rank} {how}, {AFTER}", 1, when, "\n".join(lines))

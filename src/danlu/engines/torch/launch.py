"""Start one process per rank on this machine with torchrun's agent, and say which one failed if one does."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from danlu.errors import DanluError, Interrupted

TAIL_LINES = 30


def launch(processes: int, run: Path) -> None:
    """Run ``danlu worker RUN`` on every rank until all are done. The first rank's output is this process's.

    DanluError: a rank failed, with its own message and exit code, or its last lines. Interrupted: somebody ended it.
    """
    logs = run / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    # Threads of several processes on the same cores would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=run.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(
            log_dir=str(logs), redirects={rank: Std.ALL if rank else Std.ERR for rank in range(processes)}
        ),
    )
    logging.disable(logging.ERROR)  # the agent's account of which process got which signal; what a person needs is raised
    try:
        elastic_launch(config, sys.executable)("-m", "danlu", "worker", str(run))
    except ChildFailedError as failed:
        raise _explained(failed, run) from None
    except SignalException:
        stopped = Interrupted("stopped; run the same command to go on from the last checkpoint")
        raise _told(run) or stopped from None
    finally:
        logging.disable(logging.NOTSET)


def _told(run: Path) -> DanluError | None:
    """The error of danlu's own that a rank ended with first, if one did; the others mostly lost their connection to it."""
    files = list((run / "logs").glob("error-*.json"))
    if not files:
        return None
    error = json.loads(min(files, key=lambda file: file.stat().st_mtime_ns).read_text(encoding="utf-8"))
    told = DanluError(error["message"])
    told.exit_code = error["exit_code"]
    return told


def _explained(failed: ChildFailedError, run: Path) -> DanluError:
    """What ended the rank that failed first on its own account."""
    if (told := _told(run)) is not None:
        return told
    rank, failure = failed.get_first_failure()
    output = sorted((run / "logs").glob(f"**/{failure.local_rank}/stderr.log"))
    lines = output[0].read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:] if output else []
    print("\n".join(lines), file=sys.stderr)
    how = f"was ended by signal {-failure.exitcode}" if failure.exitcode < 0 else f"failed with exit code {failure.exitcode}"
    return DanluError(f"rank {rank} {how}, and the others were stopped; run the same command to go on from the last checkpoint")

"""Run this very command once more in several processes on this machine, with torchrun's agent."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from danlu.errors import DanluError, Interrupted

TAIL_LINES = 30
ERROR = "danlu: "
"""How the line begins that says what ended a command."""


def again(processes: int) -> None:
    """What rank 0 prints is printed. DanluError: a process failed, with its own line and exit code, or its last lines."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="danlu",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(
                log_dir=folder, redirects={rank: Std.ALL if rank else Std.ERR for rank in range(processes)}
            ),
        )
        logging.disable(logging.ERROR)  # the agent's own account
        try:
            elastic_launch(config, sys.executable)("-m", "danlu", *sys.argv[1:])
        except ChildFailedError as failed:
            rank, failure = failed.get_first_failure()
            raise _explained(rank, failure.exitcode, _stderr(Path(folder), failure.local_rank)) from None
        except SignalException:
            raise Interrupted("stopped") from None
        finally:
            logging.disable(logging.NOTSET)
        for line in _stderr(Path(folder), 0):
            print(line, file=sys.stderr)


def _stderr(folder: Path, rank: int) -> list[str]:
    return [
        line
        for file in sorted(folder.glob(f"**/{rank}/stderr.log"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]


def _explained(rank: int, code: int, stderr: list[str]) -> DanluError:
    told = [line.removeprefix(ERROR) for line in stderr if line.startswith(ERROR)]
    if code > 0 and told:
        error = DanluError(told[-1])
        error.exit_code = code
        return error
    print("\n".join(stderr[-TAIL_LINES:]), file=sys.stderr)
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    return DanluError(f"rank {rank} {how}, and the others were stopped")

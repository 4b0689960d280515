"""Start this machine's ranks without any framework, and say which one failed if one does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from danlu.environment import Nodes
from danlu.errors import DanluError, Interrupted
from danlu.launch import cause
from danlu.launch.cause import AFTER, Cause

COMMAND = [sys.executable, "-m", "danlu"]
TAIL_LINES = 30
_ERROR = "danlu: "
"""How the line begins that says what ended a command."""
SAVE_SECONDS = 180
"""How long ranks may take to save after somebody has stopped the run."""
OTHERS_SECONDS = 15
"""How long the others have to end by themselves when one has failed: they lose their connection to it."""


Ranks = dict[int, "subprocess.Popen[bytes]"]


def launch(processes: int, run: Path, logs: Path, place: Path, own: range, nodes: Nodes) -> None:
    """Run ``danlu worker RUN`` on the ranks ``own`` of this machine until all are done; what rank 0 prints is printed here.

    ``logs`` is where all ranks leave what ended them, ``place`` what those of this machine print.

    DanluError: a rank failed, with its own message and exit code, or its last lines. Interrupted: somebody ended it.
    """
    try:
        ranks = _run(["worker", str(run)], processes, own, nodes.rendezvous, place)
    except KeyboardInterrupt:
        told = cause.found(logs)
        if told and not told[0].consequence:
            raise told[0].error from None
        raise Interrupted("stopped; run the same command to go on from the last checkpoint") from None
    if any(process.returncode for process in ranks.values()):
        raise _explained(ranks, logs, place)


def again(processes: int) -> None:
    """This very command in several processes; what rank 0 prints is printed. DanluError: one failed, with its own line."""
    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
        try:
            ranks = _run(sys.argv[1:], processes, range(processes), "127.0.0.1:0", Path(folder))
        except KeyboardInterrupt:
            raise Interrupted("stopped") from None
        failed = [rank for rank, process in ranks.items() if process.returncode]
        # Of several that failed, the one with a line of danlu's own knows why.
        lines = {rank: (Path(folder) / f"rank-{rank}.log").read_text("utf-8", errors="replace").splitlines() for rank in ranks}
        for rank in failed:
            told = [line.removeprefix(_ERROR) for line in lines[rank] if line.startswith(_ERROR)]
            if told:
                error = DanluError(told[-1])
                error.exit_code = ranks[rank].returncode
                raise error
        if failed:
            print("\n".join(lines[failed[0]][-TAIL_LINES:]), file=sys.stderr)
            raise DanluError(f"rank {failed[0]} failed with exit code {ranks[failed[0]].returncode}, and the others were stopped")


def _run(arguments: list[str], processes: int, own: range, rendezvous: str, place: Path) -> Ranks:
    """The ranks of this machine when they have ended. KeyboardInterrupt: somebody ended them, Ctrl-C or SIGTERM."""
    host, _, port = rendezvous.rpartition(":")
    common = os.environ | {"WORLD_SIZE": str(processes), "MASTER_ADDR": host, "MASTER_PORT": port if int(port) else _free_port()}
    # Threads of several processes on the same cores would wait for each other.
    common.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(own))))
    ranks: Ranks = {}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for local, rank in enumerate(own):
            with (place / f"rank-{rank}.log").open("wb") as log:
                ranks[rank] = subprocess.Popen(
                    [*COMMAND, *arguments],
                    env=common | {"RANK": str(rank), "LOCAL_RANK": str(local)},
                    stdout=log if rank else None,
                    stderr=log,
                )
        _await(ranks)
    except KeyboardInterrupt:
        _end(ranks, SAVE_SECONDS)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in ranks.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    return ranks


def _free_port() -> str:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return str(trial.getsockname()[1])


def _await(ranks: Ranks) -> None:
    """Until all have ended, or one has failed and the others had their time."""
    while None in (codes := [rank.poll() for rank in ranks.values()]):  # all are asked: one that lives hides none that died
        if any(codes):
            time.sleep(0.5)  # most notice by themselves
            _end(ranks, OTHERS_SECONDS)
            return
        time.sleep(0.1)


def _end(ranks: Ranks, seconds: float) -> None:
    for rank in ranks.values():
        if rank.poll() is None:
            rank.send_signal(signal.SIGTERM)
    until = time.monotonic() + seconds
    while any(rank.poll() is None for rank in ranks.values()) and time.monotonic() < until:
        time.sleep(0.1)


def _explained(ranks: Ranks, logs: Path, place: Path) -> DanluError:
    """What ended the rank that failed on its own account; its traceback or last lines are printed."""
    for rank, process in ranks.items():
        code = process.poll()
        if code is not None and code not in (0, -signal.SIGTERM) and not (logs / f"error-{rank}.json").exists():
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code} and no error"
            how += " (as the kernel does when memory runs out)" if code == -signal.SIGKILL else ""
            tail = (place / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            # What ended without a word did so before the others lost their connection to it.
            cause.leave(logs, Cause(rank, f"rank {rank} {how}, {AFTER}", 1, 1, "\n".join(tail)))
    causes = cause.found(logs)
    if not causes:
        return DanluError(f"the ranks were stopped from outside; see {logs}")
    if causes[0].traceback:
        print(causes[0].traceback.rstrip(), file=sys.stderr)
    return causes[0].error

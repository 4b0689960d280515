"""What ended a run of several processes: each leaves its error in a file, and the first that is no other's consequence counts."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from danlu.errors import DanluError, Interrupted, RunStopped
from danlu.files import write_json

AFTER = "and the others were stopped; run the same command to go on from the last checkpoint"
LEADER_SECONDS = 20.0
_LOST = re.compile(
    r"gloo/transport|connection (was )?(closed|reset|refused|lost)|broken pipe"
    r"|remote process exited|NCCL communicator was aborted|ncclRemoteError|timed? ?out|store .*(closed|failed)",
    re.IGNORECASE,
)
"""What a rank's framework says when another one is gone."""


@dataclass(frozen=True)
class Cause:
    """The error that ended a rank: one line, and what is to be printed above it where it is not one of danlu's own."""

    rank: int
    message: str
    exit_code: int
    when: int
    """time.time_ns()"""
    traceback: str = ""
    consequence: bool = False
    """Whether it only says that another rank is gone."""

    @property
    def error(self) -> DanluError:
        """To be raised where a person sees it."""
        error = DanluError(self.message)
        error.exit_code = self.exit_code
        return error

    @property
    def agreed(self) -> bool:
        """Whether all ranks end with it, each in its own time."""
        return self.exit_code in (Interrupted.exit_code, RunStopped.exit_code)


def leave(logs: Path, cause: Cause) -> None:
    """Write the file of a rank's error, unless it has left one already."""
    logs.mkdir(exist_ok=True)
    if not (file := logs / f"error-{cause.rank}.json").exists():
        write_json(file, asdict(cause))


def found(logs: Path) -> list[Cause]:
    """All errors that were left: those of the ranks' own first, the earliest first."""
    causes = []
    for file in logs.glob("error-*.json"):
        try:
            causes.append(Cause(**json.loads(file.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):  # half read over a network file system
            continue
    return sorted(causes, key=lambda cause: (cause.consequence, cause.when))


@contextmanager
def told(logs: Path, rank: int) -> Iterator[None]:
    """Leave the error that ends this rank.

    The launcher stops all ranks when one ends with an error. Where all end with the same, the others give the first one the
    time to write what it has to say.
    """
    try:
        yield
    except DanluError as error:
        cause = Cause(rank, str(error), error.exit_code, time.time_ns())
        leave(logs, cause)
        until = time.monotonic() + LEADER_SECONDS
        while cause.agreed and rank and not (logs / "error-0.json").exists() and time.monotonic() < until:
            time.sleep(0.1)
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or "no message"
        text = f"{type(error).__name__}: {said}"
        line = f"rank {rank} failed ({text}), {AFTER}"
        leave(logs, Cause(rank, line, 1, time.time_ns(), traceback.format_exc(), bool(_LOST.search(text))))
        raise

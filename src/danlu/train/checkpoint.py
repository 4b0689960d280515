"""Checkpoints that are complete or absent: written aside, checksummed, renamed; verified before they are read."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from danlu import heartbeat
from danlu.engines.base import Engine
from danlu.errors import RunStopped, UserError
from danlu.files import sha256, sync, why, write_json

STATE = "state.json"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")

Sums = dict[str, dict[str, Any]]
"""Size and SHA-256 of files, by name."""


class Checkpoint(NamedTuple):
    """A verified checkpoint; step is the number of optimizer steps done."""

    step: int
    path: Path
    state: dict[str, Any]


class _Damaged(Exception):
    """Why a checkpoint cannot be trusted."""


def place(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def unfinished(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is while it is written."""
    return folder / f"step-{step:08d}.partial"


def prepare(folder: Path, step: int) -> None:
    """Make an empty place for what the processes write of a checkpoint. OSError: it cannot be made."""
    remove_unfinished(folder, step)
    unfinished(folder, step).mkdir(parents=True)


def remove_unfinished(folder: Path, step: int) -> None:
    """Make room where a checkpoint was not completed."""
    shutil.rmtree(unfinished(folder, step), ignore_errors=True)


def write_part(folder: Path, step: int, write: Callable[[Path], list[Path]]) -> Sums:
    """One process's files, forced to the disk, and what they must be found as. OSError: they cannot be written."""
    sums = {}
    for file in write(unfinished(folder, step)):
        sync(file)
        sums[file.name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
        heartbeat.tick()
    return sums


def complete(folder: Path, step: int, state: dict[str, Any], sums: Sums, keep: int | None) -> None:
    """Put state and manifest beside the files of all processes, rename, and delete the oldest checkpoints beyond ``keep``.

    None deletes none. OSError: it cannot be written; the checkpoints that were there are untouched.
    """
    final, partial = place(folder, step), unfinished(folder, step)

    def write(partial: Path) -> list[Path]:
        write_json(partial / STATE, {"step": step, **state})
        return [partial / STATE]

    write_json(partial / MANIFEST, {"files": sums | write_part(folder, step, write)})
    sync(partial)
    _delete(final)
    os.replace(partial, final)
    sync(folder)
    for _, path in _newest_first(folder)[keep:] if keep is not None else ():
        _delete(path)


def unwritten(folder: Path, step: int, reason: str) -> RunStopped:
    """The error of a checkpoint that could not be written."""
    last = next(iter(_newest_first(folder)), None)
    left = f"the last good one is {last[1]}" if last else "there is none before it"
    return RunStopped(
        f"{place(folder, step)}: the checkpoint could not be written: {reason}; {left}; "
        "make room and run the same command to go on"
    )


def latest(
    folder: Path,
    report: Callable[[str], None],
    repair: bool = False,
    engine: Engine | None = None,
    before: int | None = None,
) -> Checkpoint | None:
    """The newest checkpoint whose files are all as they were written; None when there is none at all.

    Damaged ones are reported and passed over. With ``repair``, which is for the one who goes on writing there, they are
    renamed, so that they do not count as checkpoints that are kept, and what a killed process left unfinished is removed.
    The processes of a layout all call, with their engine; each looks at a share of the files, and all get the same.
    With ``before``, only those of earlier steps are looked at.
    UserError: there are checkpoints, and every one is damaged; or not all processes see the same ones.
    """
    found = [(step, path) for step, path in _newest_first(folder) if before is None or step < before]
    gather, rank = (engine.gather, engine.rank) if engine is not None else (_alone, 0)
    seen = gather([path.name for _, path in found])
    if any(names != seen[0] for names in seen):
        raise UserError(f"{folder}: not all processes see the same checkpoints there; put the run where all can read and write")
    damaged = []
    for number, (step, path) in enumerate(found, 1):
        try:
            state, damage = _verified(path, slice(rank, None, len(seen))), None
        except _Damaged as reason:
            state, damage = {}, str(reason)
        damage = next(filter(None, gather(damage)), None)
        if damage is None:
            good: Checkpoint | None = Checkpoint(step, path, state)
            break
        damaged.append(path)
        next_one = "looking at the one before it" if number < len(found) else "there is none before it"
        report(f"{path} is damaged ({damage}); {next_one}")
    else:
        if found:
            what = "the only checkpoint is" if len(found) == 1 else f"all {len(found)} checkpoints are"
            raise UserError(f"{folder}: {what} damaged; bring a good one back, or delete the folder to train from the start")
        good = None
    if repair:
        _tidy(folder, damaged)
    return good


def delete_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps."""
    for later, path in _newest_first(folder):
        if later > step:
            _delete(path)


def _alone(value: Any) -> list[Any]:
    return [value]


def _tidy(folder: Path, damaged: list[Path]) -> None:
    for path in damaged:
        aside = path.with_name(f"{path.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(path, aside)
    for path in folder.iterdir() if folder.is_dir() else ():
        half_deleted = _NAME.fullmatch(path.name) and not (path / MANIFEST).is_file()
        if half_deleted or path.name.endswith(".partial"):
            shutil.rmtree(path, ignore_errors=True)


def _newest_first(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of what has a manifest, without a look at whether the rest is as it was written."""
    names = [(_NAME.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ())]
    return sorted(((int(match[1]), path) for match, path in names if match and (path / MANIFEST).is_file()), reverse=True)


def _delete(path: Path) -> None:
    (path / MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted checkpoint is never taken for a whole one
    shutil.rmtree(path, ignore_errors=True)


def _verified(path: Path, share: slice) -> dict[str, Any]:
    """The state, after a look at a share of the files. _Damaged: one is not as it was written."""
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        if STATE not in files:
            raise _Damaged(f"{MANIFEST} does not list {STATE}")
        for name in dict.fromkeys([*sorted(files)[share], STATE]):
            size, written = (path / name).stat().st_size, files[name]
            if size != written["bytes"]:
                raise _Damaged(f"{name} has {size:,} bytes, {written['bytes']:,} were written")
            if sha256(path / name) != written["sha256"]:
                raise _Damaged(f"{name} was altered since it was written")
        state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
    except OSError as error:
        raise _Damaged(f"{Path(str(error.filename)).name}: {why(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"{MANIFEST} cannot be read: {type(error).__name__}: {error}") from None
    return state

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
from danlu.errors import RunStopped, UserError
from danlu.files import sha256, sync, why, write_json

STATE = "state.json"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")


class Checkpoint(NamedTuple):
    """A verified checkpoint; step is the number of optimizer steps done."""

    step: int
    path: Path
    state: dict[str, Any]


class _Damaged(Exception):
    """Why a checkpoint cannot be trusted."""


def unfinished(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is while it is written."""
    return folder / f"step-{step:08d}.partial"


def save(folder: Path, step: int, write: Callable[[Path], dict[str, Any]], keep: int | None) -> Path:
    """Write a checkpoint and then delete the oldest beyond ``keep``; None deletes none.

    ``write`` puts files into the folder that it is given and returns the state that goes beside them (JSON).
    RunStopped: it could not be written (a full disk); the checkpoints that were there are untouched.
    """
    place, partial = folder / f"step-{step:08d}", unfinished(folder, step)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_json(partial / STATE, {"step": step, **write(partial)})
        files = sorted(partial.iterdir())
        sums = {}
        for file in files:
            sync(file)
            sums[file.name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
            heartbeat.tick()
        write_json(partial / MANIFEST, {"files": sums})
        sync(partial)
        _delete(place)
        os.replace(partial, place)
        sync(folder)
    except OSError as error:
        last = next(iter(_newest_first(folder)), None)
        left = f"the last good one is {last[1]}" if last else "there is none before it"
        raise RunStopped(
            f"{place}: the checkpoint could not be written: {why(error)}; {left}; make room and run the same command to go on"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for _, path in _newest_first(folder)[keep:] if keep is not None else ():
        _delete(path)
    return place


def latest(folder: Path, report: Callable[[str], None], repair: bool = False) -> Checkpoint | None:
    """The newest checkpoint whose files are all as they were written; None when there is none at all.

    Damaged ones are reported and passed over. With ``repair``, which is for the one who goes on writing there, they are
    renamed, so that they do not count as checkpoints that are kept, and what a killed process left unfinished is removed.
    UserError: there are checkpoints, and every one is damaged.
    """
    found = _newest_first(folder)
    damaged = []
    for number, (step, path) in enumerate(found, 1):
        try:
            good = Checkpoint(step, path, _verified(path))
        except _Damaged as damage:
            damaged.append(path)
            next_one = "looking at the one before it" if number < len(found) else "there is none before it"
            report(f"{path} is damaged ({damage}); {next_one}")
        else:
            break
    else:
        if found:
            what = "the only checkpoint is" if len(found) == 1 else f"all {len(found)} checkpoints are"
            raise UserError(f"{folder}: {what} damaged; bring a good one back, or delete the folder to train from the start")
        good = None
    if repair:
        _tidy(folder, damaged)
    return good


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


def _verified(path: Path) -> dict[str, Any]:
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        if STATE not in files:
            raise _Damaged(f"{MANIFEST} does not list {STATE}")
        for name, written in files.items():
            size = (path / name).stat().st_size
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

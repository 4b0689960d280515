"""Checkpoints that are complete or absent: written aside, checksummed, renamed; verified before they are read."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


def save(folder: Path, step: int, write: Callable[[Path], dict[str, Any]], keep: int) -> Path:
    """Write a checkpoint and then delete the oldest beyond ``keep``.

    ``write`` puts files into the folder that it is given and returns the state that goes beside them (JSON).
    RunStopped: it could not be written (a full disk); the checkpoints that were there are untouched.
    """
    name = f"step-{step:08d}"
    partial = folder / f"{name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_json(partial / STATE, {"step": step, **write(partial)})
        files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(partial.iterdir())}
        for file in files:
            sync(partial / file)
        write_json(partial / MANIFEST, {"files": files})
        sync(partial)
        shutil.rmtree(folder / name, ignore_errors=True)
        os.replace(partial, folder / name)
        sync(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        last = next(iter(_newest_first(folder)), None)
        left = f"the last good one is {last[1]}" if last else "there is none before it"
        raise RunStopped(
            f"{folder / name}: the checkpoint could not be written: {why(error)}; {left}; make room and run the same command to go on"
        ) from error
    for _, path in _newest_first(folder)[keep:]:
        (path / MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted checkpoint is never taken for a whole one
        shutil.rmtree(path, ignore_errors=True)
    return folder / name


def latest(folder: Path, report: Callable[[str], None], repair: bool = False) -> Checkpoint | None:
    """The newest checkpoint whose files are all as they were written; None when there is none at all.

    Damaged ones are reported and passed over; with ``repair`` they are also set aside under another name, and what a
    killed process left unfinished is removed. UserError: there are checkpoints, and every one is damaged.
    """
    if repair and folder.is_dir():
        for leftover in folder.glob("*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
    found = _newest_first(folder)
    for step, path in found:
        try:
            return Checkpoint(step, path, _verified(path))
        except _Damaged as damage:
            report(f"{path} is damaged ({damage}); going back to the one before it")
            if repair:
                aside = path.with_name(f"{path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(path, aside)
    if found:
        raise UserError(f"{folder}: all {len(found)} checkpoints are damaged; delete the folder to train from the start")
    return None


def _newest_first(folder: Path) -> list[tuple[int, Path]]:
    def steps() -> Iterator[tuple[int, Path]]:
        for path in folder.iterdir() if folder.is_dir() else ():
            if (match := _NAME.fullmatch(path.name)) and (path / MANIFEST).is_file():
                yield int(match[1]), path

    return sorted(steps(), reverse=True)


def _verified(path: Path) -> dict[str, Any]:
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, written in files.items():
            size = (path / name).stat().st_size
            if size != written["bytes"]:
                raise _Damaged(f"{name} has {size:,} bytes, {written['bytes']:,} were written")
            if sha256(path / name) != written["sha256"]:
                raise _Damaged(f"{name} was altered since it was written")
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        if STATE not in files or not isinstance(state, dict):
            raise _Damaged(f"{STATE} is not part of it")
    except OSError as error:
        raise _Damaged(f"{error.filename}: {why(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"{MANIFEST} cannot be read: {error}") from None
    return state

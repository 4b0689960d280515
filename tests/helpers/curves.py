"""What a run folder holds, for tests of the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danlu.train import checkpoint
from danlu.watch import store


def falling(step: int) -> float:
    return 6.0 / step


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in store.events(folder / "metrics.sqlite")]


def curve(folder: Path, name: str = "train/loss") -> dict[int, float]:
    steps, values = store.series(folder / "metrics.sqlite", name)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").iterdir())


def state(folder: Path) -> dict[str, Any]:
    found = checkpoint.latest(folder / "checkpoints", lambda line: pytest.fail(line))
    assert found is not None
    return found.state

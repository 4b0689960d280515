"""What two runs differ in: settings, data, environment, curves; and the one line that says what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from danlu.data.prepared import Prepared, is_prepared
from danlu.doctor import evidence as names
from danlu.doctor.diff.curves import HASH, Parting, partings
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Text
from danlu.doctor.load import load
from danlu.run_folder import RunFolder

VOLATILE = ("name", "run.peak", "memory_available_bytes")
"""What is measured or named anew in every run."""
OUTCOMES = (names.LOSS, names.EVALUATED, names.VALIDATION, names.GRADIENT)
CAUSES = {
    HASH: ("data.", "train.seed", "train.global_batch"),
    names.RATE: ("train.optimizer.learning_rate", "train.schedule.", "train.steps", "run.rate_factor"),
    names.SCALE: ("train.precision",),
}
"""Settings that can make a signal differ that is computed from settings alone."""
NAMED = 3


class Change(NamedTuple):
    """One thing that differs; None: it is not there."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Run:
    """One side."""

    path: str
    evidence: Evidence
    data: Mapping[str, Any]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """All that differs between two runs."""

    paths: tuple[str, str]
    settings: list[Change] | None
    """None: of one run none are known, as of a log; so with the two below."""
    data: list[Change] | None
    environment: list[Change] | None
    signals: list[Parting]
    speed: tuple[float, float] | None
    """Median tokens a second."""

    @property
    def first(self) -> Parting | None:
        """The signal that differs first; of several at one step the one that comes about first."""
        return min((one for one in self.signals if one.differs is not None), key=lambda one: one.differs or 0, default=None)

    @property
    def parted(self) -> Parting | None:
        """The loss or gradient norm that parts first beyond its noise."""
        apart = [one for one in self.signals if one.parts is not None and one.name in OUTCOMES]
        return min(apart, key=lambda one: one.parts or 0, default=None)


def read(path: Path) -> Run:
    """A run folder or a log. UserError: it is neither."""
    evidence = load(path)
    run = RunFolder(path)
    if not run.recipe_file.is_file():
        return Run(str(path), evidence, {}, {})
    environment = run.read("environment.json")
    return Run(str(path), evidence, _data(run.data), environment if isinstance(environment, dict) else {})


def _data(folder: Path) -> dict[str, Any]:
    """The fingerprints and counts of prepared data; empty where there is none."""
    if not is_prepared(folder):
        return {}
    prepared = Prepared.open(folder, verify=False)
    sources = prepared.index["sources"]
    return {
        "fingerprint": prepared.fingerprint[:16],
        "tokenizer": prepared.index["tokenizer"]["sha256"][:16],
        "vocabulary": prepared.vocab_size,
        "sources": ", ".join(f"{one['path']} {one['sha256'][:8]}" for one in sources),
        **{f"{split}.{name}": prepared.index["splits"][split][name] for split in ("train", "validation") for name in COUNTS},
    }


COUNTS = ("tokens", "documents")


def compare(first: Run, second: Run) -> Difference:
    """Hold two runs side by side."""
    speeds = [run.evidence.get(names.SPEED) for run in (first, second)]
    medians = [float(np.median(one.finite.values)) for one in speeds if one is not None]
    return Difference(
        (first.path, second.path),
        _changes(first.evidence.facts, second.evidence.facts),
        _changes(first.data, second.data),
        _changes(first.environment, second.environment),
        partings(first.evidence, second.evidence),
        (medians[0], medians[1]) if len(medians) == 2 else None,
    )


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Change] | None:
    """None where one side is not known at all."""
    if not first or not second:
        return None
    order = [*first, *(name for name in second if name not in first)]
    changes = (Change(name, first.get(name), second.get(name)) for name in order)
    return [change for change in changes if change.first != change.second and change.name not in VOLATILE]


def verdict(found: Difference) -> Text:
    """One line: do they part, where, which signal first, and what was set differently."""
    first, parted = found.first, found.parted
    if not found.signals:
        return Text("the runs have no signal in common", "两次运行没有共同的信号")
    steps = max(one.points for one in found.signals)
    told, told_zh = _told(found, first)
    if first is None:
        return Text(f"the same curves over {steps} steps{told}", f"{steps} 步内曲线完全相同{told_zh}")
    where = f"{first.name} differs first, at step {first.differs}"
    where_zh = f"最先不同的是 {first.name}（第 {first.differs} 步）"
    if parted is None:
        return Text(
            f"the curves stay within their noise over {steps} steps; {where}{told}",
            f"{steps} 步内曲线之差不超过噪声；{where_zh}{told_zh}",
        )
    return Text(
        f"the runs part at step {parted.parts}, where {parted.name} leaves its noise; {where}{told}",
        f"两次运行在第 {parted.parts} 步分开，{parted.name} 超出噪声；{where_zh}{told_zh}",
    )


def _told(found: Difference, first: Parting | None) -> tuple[str, str]:
    """The settings that explain it, as far as they are known; else what else differs."""
    causes = CAUSES.get(first.name, ()) if first is not None else ()
    settings = found.settings or []
    chosen = [change for change in settings if change.name.startswith(causes)] if causes else settings
    chosen = chosen or settings
    if chosen:
        named = ", ".join(f"{one.name} {shown(one.first)} → {shown(one.second)}" for one in chosen[:NAMED])
        more = len(chosen) - NAMED
        return (
            f"; set differently: {named}" + (f" and {more} more" if more > 0 else ""),
            f"；设置不同：{named}" + (f" 等 {len(chosen)} 项" if more > 0 else ""),
        )
    if found.data:
        return "; the data differs", "；数据不同"
    if found.environment:
        named = ", ".join(f"{one.name} {shown(one.first)} → {shown(one.second)}" for one in found.environment[:NAMED])
        return f"; the environment differs: {named}", f"；环境不同：{named}"
    if found.settings is None:
        return "; what was set is not known", "；设置未知"
    same, same_zh = ("settings and data are", "设置与数据") if found.data is not None else ("settings are", "设置")
    return f"; {same} the same", f"；{same_zh}相同"


def shown(value: Any) -> str:
    """A setting in a line; what is not set is a dash."""
    return "–" if value is None else str(value)

"""A difference for a person on a terminal and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from danlu.doctor.diff.compare import Change, Difference, shown, verdict
from danlu.doctor.diff.curves import HASH, Parting
from danlu.doctor.finding import Text
from danlu.doctor.show import Language, said
from danlu.watch.format import figure, padded

TITLES = {
    "settings": Text("settings", "设置"),
    "data": Text("data", "数据"),
    "environment": Text("environment", "环境"),
    "signals": Text("curves", "曲线"),
    "speed": Text("speed", "速度"),
}
SAME = Text("the same", "相同")
UNKNOWN = Text("not known", "未知")
SIGNALS = 12
"""Lines of curves at most; the rest is in the JSON."""


def lines(found: Difference, language: Language) -> Iterator[str]:
    """What the terminal shows: the verdict, then all that differs."""
    yield said(verdict(found), language)
    for name in ("settings", "data", "environment"):
        changes: list[Change] | None = getattr(found, name)
        texts = [f"{change.name}: {shown(change.first)} → {shown(change.second)}" for change in changes or ()]
        yield from _paragraph(said(TITLES[name], language), texts or [said(SAME if changes == [] else UNKNOWN, language)])
    yield from _paragraph(said(TITLES["signals"], language), [_signal(one, language) for one in shown_signals(found)])
    if found.speed is not None:
        first, second = found.speed
        unit = said(Text("tokens/s in the median step", "token/秒（中位步）"), language)
        yield from _paragraph(said(TITLES["speed"], language), [f"{first:,.0f} → {second:,.0f} {unit} ({second / first:.2f}x)"])


def _paragraph(title: str, texts: list[str]) -> Iterator[str]:
    for at, text in enumerate(texts):
        yield f"  {padded('' if at else title, 12)} {text}"


def shown_signals(found: Difference) -> list[Parting]:
    """Those of the whole run, and the layers that part."""
    whole = [one for one in found.signals if not one.name.startswith("layer/")]
    return [*whole, *(one for one in found.signals if one not in whole and one.parts is not None)][:SIGNALS]


def _signal(one: Parting, language: Language) -> str:
    if one.differs is None:
        return f"{one.name}: {said(Text(f'the same at {one.points} steps', f'{one.points} 步相同'), language)}"
    told = Text(f"differs from step {one.differs}", f"自第 {one.differs} 步不同")
    if one.parts is None and one.noise is None:
        told = Text(f"{told.en}; too few points to know its noise", f"{told.zh}；点数太少，无法估计噪声")
    elif one.parts is None:
        told = Text(f"{told.en}, within the noise", f"{told.zh}，在噪声之内")
    elif one.name != HASH:
        values = f"{figure(one.values[0])} → {figure(one.values[1])}"
        told = Text(
            f"{told.en}, beyond the noise from {one.parts} ({values})", f"{told.zh}，自 {one.parts} 步超出噪声（{values}）"
        )
    return f"{one.name}: {said(told, language)}"


def _changes(changes: list[Change] | None) -> list[dict[str, Any]] | None:
    return None if changes is None else [change._asdict() for change in changes]


def as_json(found: Difference) -> dict[str, Any]:
    """The difference for programs."""

    def number(value: float) -> float | str:
        return value if math.isfinite(value) else str(value)

    first, parted = found.first, found.parted
    return {
        "runs": list(found.paths),
        "verdict": verdict(found)._asdict(),
        "first_signal": None if first is None else first.name,
        "first_step": None if first is None else first.differs,
        "parted_signal": None if parted is None else parted.name,
        "parted_step": None if parted is None else parted.parts,
        **{name: _changes(getattr(found, name)) for name in ("settings", "data", "environment")},
        "signals": [one._asdict() | {"values": [number(value) for value in one.values]} for one in found.signals],
        "tokens_per_second": None if found.speed is None else list(found.speed),
    }

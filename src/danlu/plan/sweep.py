"""The same training planned for several values of one setting: how many devices, how long a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from danlu.errors import UserError
from danlu.plan.hardware import Hardware, load
from danlu.plan.outcome import row
from danlu.plan.request import Request
from danlu.plan.search import Plan, search
from danlu.plan.verdict import cells, columns, table

WHOLE = ("devices", "sequence", "global_batch", "micro_batch")
SETTINGS = (*WHOLE, "hardware")

Row = tuple[str, Request, Plan | None]


def parse(text: str) -> tuple[str, list[str]]:
    """``devices=8,16`` as a setting and its values. UserError: another setting, or no values."""
    name, _, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in SETTINGS:
        raise UserError(f"--sweep: {name or text!r} cannot be swept; give one of {', '.join(SETTINGS)}, such as devices=8,16,32")
    found = [value.strip() for value in values.split(",") if value.strip()]
    bad = [value for value in found if name in WHOLE and (not value.isdecimal() or int(value) < 1)]
    if not found or bad:
        what = f"{bad[0]!r} is not a positive whole number" if bad else "has no values"
        raise UserError(f"--sweep {name}: {what}; write it like devices=8,16,32")
    return name, found


def sweep(request: Request, hardware: Hardware, devices: int, name: str, values: list[str]) -> list[Row]:
    """The best plan for every value, or None where nothing fits. The tokens of the whole training stay the same."""
    rows = []
    for value in values:
        asked, here, number = request, hardware, devices
        if name == "devices":
            number = int(value)
        elif name == "hardware":
            here = load(value)
        elif name == "micro_batch":
            asked = request.with_(fixed={**request.fixed, name: int(value)})
        else:
            asked = request.with_(**{name: int(value)})
            asked = asked.with_(steps=request.tokens / (asked.sequence * asked.global_batch))
        plans = search(asked, here.of(number), number).plans
        rows.append((value, asked, plans[0] if plans else None))
    return rows


def lines(name: str, rows: list[Row]) -> Iterator[str]:
    """A table for people."""
    fitting = [(request, plan) for _, request, plan in rows if plan is not None]
    if not fitting:
        yield f"nothing fits with {name} {', '.join(value for value, _, _ in rows)}"
        return
    head, _ = columns([plan for _, plan in fitting], fitting[0][0])
    shown = []
    for value, request, plan in rows:
        figures = cells(plan, request) if plan is not None else {head[0]: "does not fit"}
        shown.append([value, *(figures.get(column, "") for column in head)])
    yield from table((name.replace("_", " "), *head), shown)


def as_json(name: str, rows: list[Row]) -> list[dict[str, Any]]:
    """The same for programs; ``plan`` is null where nothing fits."""
    return [{name: value, "plan": row(plan, request) if plan else None} for value, request, plan in rows]

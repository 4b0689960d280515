"""A simulated pipeline step as a picture: who computes what when, and who waits. SVG for pages, letters for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from danlu.plan.schedule import Operation, Timeline

NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}
LEFT, RIGHT, TOP, ROW, GAP = 74, 132, 58, 22, 5
"""Pixels: the labels on either side, the head, a device's row and the space below it."""
WIDTH = 1400
"""Pixels of the whole picture; a page scales it."""
DETAILED = 3000
"""Operations up to which each is a box of its own that tells its times when pointed at; beyond, a device's are one path."""
DIGIT = 4.4
"""Pixels of one digit in a box."""

_STYLE = """
.tl{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
.tl text{fill:#1c2430;font-size:12px}.tl .head{font-size:15px;font-weight:600}.tl .dim{fill:#69727f;font-size:11px}
.tl .end{text-anchor:end}.tl .mid{text-anchor:middle}
.tl .n{fill:#fff;font-size:7.5px;text-anchor:middle;pointer-events:none}
.tl .paper{fill:#fff}.tl .axis{stroke:#d5dae1}.tl .idle{fill:#eef0f3}.tl .hatch{stroke:#aab2bd;stroke-width:1.2}
.tl .F{fill:#3f7fc1}.tl .B{fill:#df8a2b}.tl .W{fill:#4c9a6a}
.tl .F.later{fill:#7ea9d6}.tl .B.later{fill:#e9b06f}.tl .W.later{fill:#86bb9b}
@media (prefers-color-scheme:dark){.tl text{fill:#e6eaf0}.tl .dim{fill:#98a2b0}.tl .n{fill:#10141a}
.tl .paper{fill:#14181e}.tl .axis{stroke:#39414d}.tl .idle{fill:#1e242c}.tl .hatch{stroke:#525d6b}
.tl .F{fill:#5b9ae0}.tl .B{fill:#e79b45}.tl .W{fill:#5fb281}
.tl .F.later{fill:#4673a5}.tl .B.later{fill:#a97337}.tl .W.later{fill:#488361}}
"""
"""Plain colours, not variables: viewers that are no browsers know only these."""


def svg(line: Timeline, note: str = "") -> str:
    """A self-contained SVG document, in light or dark as its reader has it. The note is put behind the title."""
    scale = (WIDTH - LEFT - RIGHT) / line.seconds
    bottom = TOP + line.devices * (ROW + GAP)
    height = bottom + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="tl" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(title(line))}">',
            f"<style>{_STYLE}</style>",
            '<defs><pattern id="tl-bubble" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            '<rect class="idle" width="6" height="6"/><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            f'<text class="head" x="12" y="24">{escape(title(line))}</text>',
            *_legend(line, note),
            *_axis(line, scale, bottom),
            *(part for device in range(line.devices) for part in _row(line, device, scale)),
            "</svg>\n",
        ]
    )


def title(line: Timeline) -> str:
    """What the picture shows, in one line."""
    stages = f" x {line.virtual_stages} stages" if line.virtual_stages > 1 else ""
    shape = f"{_counted(line.devices, 'device')}{stages}, {_counted(line.micro_batches, 'micro-batch')}"
    return f"{line.schedule}: {shape}, {duration(line.seconds)} a step, bubble {line.bubble:.1%}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "es" if what.endswith("ch") else "s")


def _legend(line: Timeline, note: str) -> Iterator[str]:
    kinds = [kind for kind in NAMES if any(operation.kind == kind for operation in line.operations)]
    x = 12
    for kind in kinds:
        yield f'<rect class="{kind}" x="{x}" y="36" width="11" height="11" rx="2"/><text x="{x + 16}" y="46">{NAMES[kind]}</text>'
        x += 30 + 7 * len(NAMES[kind])
    yield f'<rect fill="url(#tl-bubble)" x="{x}" y="36" width="11" height="11" rx="2"/><text x="{x + 16}" y="46">bubble</text>'
    x += 80
    if line.virtual_stages > 1:
        yield f'<text class="dim" x="{x}" y="46">paler: later stages of a device</text>'
        x += 190
    yield f'<text class="dim" x="{x}" y="46">{escape(note)}</text>' if note else ""
    yield f'<text class="dim" x="{WIDTH - RIGHT + 10}" y="46">waits · most in flight</text>'


def _axis(line: Timeline, scale: float, bottom: int) -> Iterator[str]:
    step = nice_step(line.seconds / 10)
    for number in range(int(line.seconds / step + 1e-9) + 1):
        x = LEFT + number * step * scale
        yield f'<line class="axis" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom + 4}"/>'
        yield f'<text class="dim mid" x="{x:.1f}" y="{bottom + 18}">{duration(number * step)}</text>'


def _row(line: Timeline, device: int, scale: float) -> Iterator[str]:
    y = TOP + device * (ROW + GAP)
    mine = [operation for operation in line.operations if operation.device == device]
    idle = 1 - sum(operation.end - operation.start for operation in mine) / line.seconds
    yield f'<text class="end" x="{LEFT - 8}" y="{y + 15}">device {device}</text>'
    yield f'<rect fill="url(#tl-bubble)" x="{LEFT}" y="{y}" width="{line.seconds * scale:.1f}" height="{ROW}"/>'
    digits = len(str(line.micro_batches - 1))
    yield from _boxes(mine, y, scale, digits) if len(line.operations) <= DETAILED else _paths(mine, y, scale)
    yield f'<text class="dim" x="{WIDTH - RIGHT + 10}" y="{y + 15}">{idle:.1%} · {line.in_flight[device]}</text>'


def _boxes(operations: list[Operation], y: int, scale: float, digits: int) -> Iterator[str]:
    """Numbered where the box is wide enough for the largest number, so that no row stops being numbered in the middle."""
    for operation in operations:
        x, width = LEFT + operation.start * scale, (operation.end - operation.start) * scale
        told = f"{NAMES[operation.kind]} of micro-batch {operation.micro_batch}"
        told += f", {duration(operation.start)} to {duration(operation.end)}"
        yield (
            f'<rect class="{_look(operation)}" x="{x:.2f}" y="{y}" width="{max(width - 0.7, 0.3):.2f}" height="{ROW}">'
            f"<title>{told}</title></rect>"
        )
        if width > DIGIT * digits:
            yield f'<text class="n" x="{x + width / 2:.1f}" y="{y + 14}">{operation.micro_batch}</text>'


def _paths(operations: list[Operation], y: int, scale: float) -> Iterator[str]:
    strokes: dict[str, list[str]] = {}
    for operation in operations:
        x, width = LEFT + operation.start * scale, (operation.end - operation.start) * scale
        strokes.setdefault(_look(operation), []).append(
            f"M{x:.2f} {y}h{max(width - 0.2, 0.1):.2f}v{ROW}h-{max(width - 0.2, 0.1):.2f}z"
        )
    for look, parts in strokes.items():
        yield f'<path class="{look}" d="{"".join(parts)}"/>'


def _look(operation: Operation) -> str:
    return operation.kind + (" later" if operation.chunk % 2 else "")


def text(line: Timeline, width: int = 100) -> list[str]:
    """The same in letters, one line a device: F, B and W where one computes, a dot where it waits. Width in characters."""
    label = len(f"device {line.devices - 1}") + 1
    columns = max(20, width - label)
    rows = [title(line)]
    for device in range(line.devices):
        mine = [operation for operation in line.operations if operation.device == device]
        rows.append(f"device {device}".ljust(label) + "".join(_letters(mine, line.seconds / columns, columns)))
    shown = [f"{kind} {name}" for kind, name in NAMES.items() if any(operation.kind == kind for operation in line.operations)]
    return [*rows, f"{'':{label}}{', '.join(shown)}, . waits; one character is {duration(line.seconds / columns)}"]


def _letters(operations: list[Operation], cell: float, columns: int) -> Iterator[str]:
    """One of the things that a device does in each cell, such that over many cells each has its share."""
    owed = dict.fromkeys("FBW.", 0.0)
    first = 0
    for column in range(columns):
        begin, end = column * cell, (column + 1) * cell
        shares = dict.fromkeys("FBW.", 0.0)
        while first < len(operations) and operations[first].end <= begin:
            first += 1
        for operation in operations[first:]:
            if operation.start >= end:
                break
            shares[operation.kind] += min(end, operation.end) - max(begin, operation.start)
        shares["."] = cell - sum(shares.values())
        here = [kind for kind, share in shares.items() if share > 1e-9 * cell]
        for kind, share in shares.items():
            owed[kind] += share
        letter = max(here, key=lambda kind: owed[kind])
        owed[letter] -= cell
        yield letter


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** len(str(int(1 / least))) if least < 1 else 1.0
    scaled, unit = least * power, 1.0
    while unit * 10 <= scaled:
        unit *= 10
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= scaled) / power


def duration(value: float) -> str:
    """Seconds as a person reads them: 0, 350 us, 12.5 ms, 3.2 s."""
    if value == 0:
        return "0"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 0.9995 or unit == "us":
            return f"{value * factor:.3g} {unit}" if value * factor < 1000 else f"{value * factor:,.0f} {unit}"
    raise AssertionError(value)

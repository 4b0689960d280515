"""The plan as a page: verdict, plans, memory of every stage, schedule. One HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from danlu.plan.explain import why_it_beats
from danlu.plan.memory import StageMemory
from danlu.plan.outcome import Outcome, micro_batches, timeline
from danlu.plan.search import Plan
from danlu.plan.timeline import duration, svg
from danlu.plan.verdict import columns, lines, paste
from danlu.plan.words import count, gigabytes

COMPONENTS = (
    ("weights", "weights", "#3f7fc1"),
    ("gradients", "gradients", "#78a9dc"),
    ("master", "FP32 master weights", "#2a5a8c"),
    ("optimizer", "optimizer", "#4c9a6a"),
    ("activations", "activations", "#df8a2b"),
    ("embedding", "embedding output", "#edc07f"),
    ("logits_and_loss", "logits and loss", "#c2543f"),
    ("communication", "communication buffers", "#8a6fb0"),
    ("temporaries", "temporaries", "#b7a2d1"),
    ("overhead", "framework", "#9aa3ae"),
)
"""Field of a stage's memory, its name, its colour."""

_STYLE = """
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;margin:2rem auto;max-width:1400px;
padding:0 1.2rem;color:#1c2430;background:#fff}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.verdict{border-left:5px solid #4c9a6a;padding:.4rem 1rem;background:#f1f7f3;white-space:pre-wrap;
font:14px/1.6 ui-monospace,Menlo,Consolas,monospace}
.verdict.no{border-color:#c2543f;background:#fbf1ef}
table{border-collapse:collapse;font-size:14px}th{text-align:left;font-weight:600}
td,th{padding:.3rem 1.4rem .3rem 0;border-bottom:1px solid #e1e5ea;vertical-align:top}
td.why{color:#69727f;border-bottom:1px solid #c8ced6}
.stage{display:grid;grid-template-columns:5rem 1fr 13rem;gap:.8rem;align-items:center;margin:.3rem 0;font-size:13px}
.bar{display:flex;height:20px;position:relative;background:#eef0f3}.bar i{display:block;height:100%}
.bar b{position:absolute;top:-3px;bottom:-3px;width:2px;background:#1c2430}.bar b.room{background:#c2543f}
.key span{display:inline-block;margin-right:1.1rem;font-size:13px}
.key i{display:inline-block;width:11px;height:11px;margin-right:5px}
pre{background:#f4f6f8;padding:.7rem 1rem;overflow:auto}.dim{color:#69727f}.best{font-weight:600}svg.tl{width:100%;height:auto}
@media (prefers-color-scheme:dark){body{color:#e6eaf0;background:#14181e}.verdict{background:#17251d}
.verdict.no{background:#2b1a17}td,th{border-color:#2c343f}td.why{color:#98a2b0;border-color:#4a5462}
.bar{background:#1e242c}.bar b{background:#e6eaf0}.bar b.room{background:#e0735d}pre{background:#1b2129}.dim{color:#98a2b0}}
"""


def render(outcome: Outcome) -> str:
    """The whole page."""
    request, best = outcome.request, outcome.chosen
    title = f"{request.name} on {outcome.devices:,} x {outcome.hardware.name}"
    facts = f"{count(request.dimensions.parameters)} parameters, {request.sequence:,} tokens a sample, "
    facts += f"{request.global_batch:,} samples a step, {count(request.tokens)} tokens"
    summary: list[str] = []
    for line in lines(outcome, 100):
        if not line:
            break
        summary.append(line)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="dim">{escape(facts)}</p>',
        f'<div class="verdict{"" if best else " no"}">{escape(chr(10).join(summary))}</div>',
    ]
    if best is not None:
        parts += _plans(outcome)
        parts += ["<h2>Memory of every stage</h2>", *_stages(best)]
        if best.job.pipeline > 1:
            parts += ["<h2>Schedule</h2>", svg(*timeline(best))]
        parts += ["<h2>Micro-batches of plan 1</h2>", *_sizes(best)]
        parts += ["<h2>To run plan 1, put this into the recipe</h2>", f"<pre>{escape(chr(10).join(paste(best)))}</pre>"]
    return "\n".join([*parts, "</body></html>\n"])


def _plans(outcome: Outcome) -> Iterator[str]:
    plans = outcome.found.plans
    head, rows = columns(plans, outcome.request)
    yield "<h2>Plans</h2><table><tr><th></th>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"
    for place, (plan, row) in enumerate(zip(plans, rows, strict=True)):
        values = [str(place + 1), *row]
        yield "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in values) + "</tr>"
        if place + 1 < len(plans):
            why = escape(why_it_beats(plan, plans[place + 1]))
            yield f'<tr><td></td><td class="why" colspan="{len(head)}">beats {place + 2}: {why}</td></tr>'
    yield "</table>"


def _stages(plan: Plan) -> Iterator[str]:
    stages, room = plan.memory.stages, plan.hardware.memory
    most = max(room, plan.memory.bound) * 1.02
    shown = [each for each in COMPONENTS if any(getattr(stage, each[0]) > 0 for stage in stages)]
    keys = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for _, name, colour in shown)
    yield f'<p class="key">{keys}<span class="dim">tick: safe bound; red line: {gigabytes(room)} of the device</span></p>'
    for number, stage in enumerate(stages):
        yield _bar(f"stage {number}", stage, room, most)


def _bar(name: str, stage: StageMemory, room: float, most: float) -> str:
    pieces = ""
    for field, told, colour in COMPONENTS:
        if (size := getattr(stage, field)) > 0:
            pieces += f'<i style="width:{size / most:.3%};background:{colour}" title="{told}: {gigabytes(size)}"></i>'
    marks = f'<b style="left:{stage.bound / most:.3%}"></b><b class="room" style="left:{room / most:.3%}"></b>'
    figures = f"{gigabytes(stage.estimate)}, bound {gigabytes(stage.bound)}"
    return f'<div class="stage"><span>{name}</span><div class="bar">{pieces}{marks}</div><span class="dim">{figures}</span></div>'


def _sizes(best: Plan) -> Iterator[str]:
    yield "<table><tr><th>micro-batch</th><th>a step</th><th>memory</th><th>step</th><th></th></tr>"
    for plan in micro_batches(best):
        chosen = plan.job.micro_batch == best.job.micro_batch
        said = "plan 1" if chosen else "" if plan.fits else "does not fit"
        values = [str(plan.job.micro_batch), str(plan.job.micro_batches), gigabytes(plan.memory.peak)]
        values += [duration(plan.time.seconds), said]
        look = ' class="best"' if chosen else ""
        yield f"<tr{look}>" + "".join(f"<td>{escape(value)}</td>" for value in values) + "</tr>"
    yield "</table>"

"""What curation did, as a page: one HTML file that opens offline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from danlu.data.curate.tally import SCORE_STEPS
from danlu.data.progress import amount

PAGE = "curation.html"
_LANGUAGES_SHOWN = 15


def write_page(folder: Path, report: Mapping[str, Any], bytes_a_token: float | None = None) -> None:
    """Write folder/curation.html, complete or not at all.

    bytes_a_token: of the tokenised text, by which tokens are estimated for every stage; None: there is no tokenizer.
    """
    partial = folder / f"{PAGE}.partial"
    partial.write_text(render(report, bytes_a_token), encoding="utf-8")
    os.replace(partial, folder / PAGE)


def render(report: Mapping[str, Any], bytes_a_token: float | None) -> str:
    """The whole page."""
    parts = [
        "<h1>Curation</h1>",
        f"<p>{report['records']:,} records: {report['kept']:,} kept, {report['rejected']:,} rejected, {report['empty']:,} empty, "
        f"{report['unreadable']:,} unreadable.</p>",
        *_waterfall(report["waterfall"], bytes_a_token),
        *_noise(report["noise"]),
        *_rules(report),
        *_personal(report.get("personal", {})),
        *_distributions(report["read_distribution"], report["kept_distribution"]),
        *_groups(report["largest_groups"]),
        *_sources(report["sources"]),
        *_unreadable(report["read"]["examples"]),
    ]
    style = files("danlu.data.curate").joinpath("page.css").read_text("utf-8")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Curation</title><style>{style}</style>'
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a heading that begins with # is of numbers. Cells are HTML."""
    kinds = ["n" if name.startswith("#") else "bar" if not name else "" for name in head]
    cells = "".join(f'<th class="{kind}">{escape(name.lstrip("#"))}</th>' for kind, name in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f"<table><tr>{cells}</tr>\n{body}</table>"


def _bar(part: float, whole: float, kind: str = "") -> str:
    return f'<i class="{kind}" style="width:{100 * abs(part) / (whole or 1):.2f}%"></i>'


def _size(count: float) -> str:
    return ("−" if count < 0 else "") + amount(abs(count))


def _waterfall(rows: Sequence[Mapping[str, Any]], bytes_a_token: float | None) -> list[str]:
    whole = rows[0]["documents"]
    made = []
    for row in rows:
        tokens = "" if bytes_a_token is None else f"{row['bytes'] / bytes_a_token:,.0f}".replace("-", "−")
        end = row["stage"] in ("read", "kept")
        changed = f"{row['changed']:,}" if row["changed"] else ""
        documents = f"{row['documents']:,}".replace("-", "−")
        bar = _bar(row["documents"], whole, "" if end else "lost")
        made.append(
            [
                f"<b>{escape(row['stage'])}</b>" if end else escape(row["stage"]),
                documents,
                _size(row["bytes"]),
                tokens,
                changed,
                bar,
            ]
        )
    note = "" if bytes_a_token is None else f" Tokens are text over {bytes_a_token:.2f} bytes, as in what was kept."
    return [
        "<h2>Stage by stage</h2>",
        f"<p>What was read, what each stage left out and changed, what is kept.{note}</p>",
        _table(["stage", "#documents", "#text", "#tokens", "#changed", ""], made),
    ]


def _noise(noise: Mapping[str, Any] | None) -> list[str]:
    if noise is None:
        return []
    unit = noise["unit"]
    text = (
        f"{noise['achieved']:.2%} of the {unit} come from documents that failed a soft rule and nothing else; "
        f"{noise['target']:.2%} were asked for. {noise['documents']:,} of {noise['candidates']:,} candidates "
        "were drawn, by a hash of their text."
    )
    most = max(noise["rules"].values(), default=1)
    rows = sorted(noise["rules"].items(), key=lambda pair: -pair[1])
    table = _table(["rule", f"#{unit}", ""], [[escape(rule), f"{count:,}", _bar(count, most)] for rule, count in rows])
    return ["<h2>Noise</h2>", f"<p>{text}</p>", table]


def _personal(counts: Mapping[str, int]) -> list[str]:
    most = max(counts.values(), default=1)
    rows = [[escape(kind), f"{count:,}", _bar(count, most)] for kind, count in sorted(counts.items(), key=lambda pair: -pair[1])]
    return ["<h2>Personal data that was replaced</h2>", _table(["kind", "#times", ""], rows)] if rows else []


def _rules(report: Mapping[str, Any]) -> list[str]:
    rows = sorted(report["rules"].items(), key=lambda pair: -pair[1])
    if not rows:
        return []
    made = []
    for rule, count in rows:
        shown = "".join(
            f"<blockquote><b>{escape(str(one['value']))} · {escape(one['place'])}</b>{escape(one['text'])}</blockquote>"
            for one in report["samples"].get(rule, ())
        )
        name = f"<details><summary>{escape(rule)}</summary>{shown}</details>"
        made.append([name, f"{count:,}", _size(report["rule_bytes"].get(rule, 0)), _bar(count, rows[0][1], "lost")])
    return [
        "<h2>Rules</h2>",
        "<p>What each rule left out. Open one to see some of it, with what was measured and where it was.</p>",
        _table(["rule", "#documents", "#text", ""], made),
    ]


def _distributions(read: Mapping[str, Mapping[str, int]], kept: Mapping[str, Mapping[str, int]]) -> list[str]:
    lengths = sorted({int(key) for key in (*read["lengths"], *kept["lengths"])})
    scores = sorted({int(key) for key in (*read["scores"], *kept["scores"])})
    languages = sorted(read["languages"], key=lambda code: -read["languages"][code])[:_LANGUAGES_SHOWN]
    tables = [
        _compared("length of text", "lengths", [(str(n), f"below {amount(2**n)}") for n in lengths], read, kept),
        _compared("language", "languages", [(code, code) for code in languages], read, kept),
    ]
    if len(scores) > 1:
        names = [(str(n), f"{n / SCORE_STEPS:.2f} to {(n + 1) / SCORE_STEPS:.2f}") for n in scores]
        tables.append(_compared("score", "scores", names, read, kept))
    key = '<p class="key">Shares of documents <i></i>before <i class="after"></i>after</p>'
    return ["<h2>Before and after</h2>", key, f'<div class="pair">{"".join(tables)}</div>']


def _compared(
    title: str,
    name: str,
    keys: Sequence[tuple[str, str]],
    read: Mapping[str, Mapping[str, int]],
    kept: Mapping[str, Mapping[str, int]],
) -> str:
    totals = [max(1, sum(counts[name].values())) for counts in (read, kept)]
    rows = []
    for key, label in keys:
        before, after = (counts[name].get(key, 0) for counts in (read, kept))
        bars = _bar(before, totals[0]) + _bar(after, totals[1], "after")
        rows.append([escape(label), f"{before:,}", f"{after:,}", bars])
    return _table([title, "#before", "#after", ""], rows)


def _groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    if not groups:
        return []
    rows = [[escape(one["kept"]), f"{one['copies']:,}", escape(one.get("text", ""))] for one in groups]
    return ["<h2>Largest groups of copies</h2>", _table(["kept", "#copies left out", "text"], rows)]


def _sources(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for one in sources:
        share = one["kept"] / max(1, one["read"])
        figures = [f"{one['read']:,}", f"{one['kept']:,}", f"{share:.1%}", _size(one["read_bytes"]), _size(one["kept_bytes"])]
        rows.append([escape(one.get("path", f"data.sources.{one['source']}")), *figures, _bar(share, 1)])
    head = ["source", "#documents read", "#kept", "#share", "#text read", "#kept", ""]
    return ["<h2>Sources</h2>", _table(head, rows)]


def _unreadable(examples: Sequence[str]) -> list[str]:
    if not examples:
        return []
    return ["<h2>Unreadable</h2>", "".join(f"<blockquote>{escape(one)}</blockquote>" for one in examples)]

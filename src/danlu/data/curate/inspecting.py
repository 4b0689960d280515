"""Reading the result of curation again: single documents with the reason why they are where they are, and totals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from danlu.data.curate.final import LEFT_OUT
from danlu.data.curate.job import REPORT, Curated
from danlu.data.json_values import pick
from danlu.data.progress import amount
from danlu.errors import UserError

CURATED = "curated"


def open_result(folder: Path) -> Curated:
    """The result in a folder, or below a run folder.

    Raises:
        UserError: there is none, or it is not complete.
    """
    for place in (folder, folder / CURATED):
        if (place / REPORT).is_file():
            return Curated.open(place)
    unfinished = folder.with_name(folder.name + ".partial")
    if unfinished.exists():
        raise UserError(f"{folder}: curation is not finished; give its command again, and it goes on")
    raise UserError(f"{folder}: holds no result of curation; name a folder of danlu data filter or dedup, or a prepared run")


def documents(done: Curated, part: str, rule: str | None, grep: str | None, skip: int, limit: int) -> Iterator[dict[str, Any]]:
    """Documents of a part of the result, in order: text, place, and of what was left out the reason.

    rule: a stage, or a stage and a beginning of a rule's name. Raises UserError when nothing was left out by it.
    """
    if rule is not None and not any(_matches(name, rule) for name in done.report["rules"]):
        known = ", ".join(done.report["rules"]) or "none"
        raise UserError(f"--rule {rule}: nothing was left out by it; the rules that left something out: {known}")
    found = (one for one in _rows(done, part) if rule is None or _matches(f"{one['stage']}.{one['rule']}", rule))
    if grep is not None:
        found = (one for one in found if grep in one["text"])
    return islice(found, skip, skip + limit)


def _matches(name: str, rule: str) -> bool:
    return f"{name}.".startswith(f"{rule}.")


def _rows(done: Curated, part: str) -> Iterator[dict[str, Any]]:
    from msgspec.json import Decoder

    decode = Decoder().decode
    for shard in done.report["shards"]:
        path = done.folder / part / f"{shard['name']}.jsonl"
        if not path.exists():
            continue
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = decode(line)
                except ValueError:  # NaN, or half of a surrogate pair, which a document's other fields may hold
                    row = json.loads(line)
                if part == LEFT_OUT:
                    text = pick(row.pop("document"), shard["field"])
                    yield {**row, "text": text}
                else:
                    yield {"place": f"{part}/{path.name}:{number}", "text": pick(row, shard["field"])}


def shown(document: dict[str, Any], characters: int) -> str:
    """A document for the terminal: a line on it, and the beginning of its text."""
    more = [f"{name} {document[name]}" for name in ("also", "kept") if name in document]
    why = ""
    if "rule" in document:
        soft = " (soft)" if document.get("soft") else ""
        why = f"  {document['stage']}.{document['rule']} = {document['value']}{soft}"
    text = document["text"]
    cut = f"\n    … {len(text) - characters:,} characters more" if len(text) > characters else ""
    body = "\n".join("    " + line for line in text[:characters].splitlines())
    return f"{document['place']}{why}{''.join('  ' + one for one in more)}\n{body}{cut}"


def totals(done: Curated) -> dict[str, Any]:
    """What the report says of stages, rules, sources and noise."""
    names = ("records", "kept", "rejected", "empty", "unreadable", "waterfall", "rules", "sources", "noise")
    return {name: done.report[name] for name in names}


def totals_text(facts: dict[str, Any]) -> str:
    """The same for the terminal."""
    lines = [
        f"{facts['records']:,} records: {facts['kept']:,} kept, {facts['rejected']:,} rejected, {facts['empty']:,} empty, "
        f"{facts['unreadable']:,} unreadable",
        "",
    ]
    for row in facts["waterfall"]:
        changed = f"  {row['changed']:,} changed" if row["changed"] else ""
        size = amount(abs(row["bytes"]))
        lines.append(f"{row['stage']:>14} {row['documents']:>12,}  {'-' if row['bytes'] < 0 else ''}{size}{changed}")
    if facts["rules"]:
        width = max(map(len, facts["rules"]))
        lines.append("")
        lines += [f"{rule:>{width}} {count:>10,}" for rule, count in sorted(facts["rules"].items(), key=lambda pair: -pair[1])]
    if noise := facts["noise"]:
        share = f"{noise['achieved']:.2%} of the {noise['unit']}, {noise['target']:.2%} asked for"
        lines += ["", f"noise: {share}, {noise['documents']:,} of {noise['candidates']:,} candidates"]
    return "\n".join(lines)

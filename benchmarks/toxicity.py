"""Precision and recall of the toxicity stage on labelled texts: toxicity.jsonl beside this file, or other lines of that form.

The sentences were written for this purpose, half of them traps; none was trained on, but who wrote them wrote the word lists too.
Lines of JSON {"text": ..., "toxic": 0 or 1}.

Usage: python benchmarks/toxicity.py [FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from danlu.data.curate.stage import Rejected
from danlu.data.curate.toxicity.stage import Toxicity
from danlu.data.read import Document
from danlu.recipe.text_sections import ToxicitySection

WAYS = {"words": {"model": None}, "model": {"words": None}, "both": {}}


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    languages = {"en": [], "zh": []}
    for row in rows:
        languages["zh" if re.search("[\u3400-\u9fff]", row["text"]) else "en"].append(row)
    for language, some in languages.items():
        for way, settings in WAYS.items():
            said = Toxicity(ToxicitySection(**settings)).apply([Document(row["text"], 0, "") for row in some])
            pairs = [(isinstance(one, Rejected), bool(row["toxic"])) for one, row in zip(said, some, strict=True)]
            right, rejected, toxic = pairs.count((True, True)), sum(a for a, _ in pairs), sum(b for _, b in pairs)
            found[f"{language}_{way}_precision"] = round(right / max(1, rejected), 4)
            found[f"{language}_{way}_recall"] = round(right / max(1, toxic), 4)
        found[f"{language}_texts"] = len(some)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = figures([json.loads(line) for line in options.file.read_text("utf-8").splitlines()])
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Time and memory of near-duplicate removal as the corpus grows: 0.1, 1 and 5 million synthetic short documents.

A document has 20 to 60 words (every fourth is Chinese, 20 to 60 characters); every fifth is a copy of an earlier one of its
block of 10,000 with one word changed. `danlu data dedup --memory 64MiB` runs on one large file, in the same number of processes
whatever its size; seconds, CPU-seconds and peak are those of all its processes, reading, writing and starting included. A page
that several of them share counts once.

Usage: python benchmarks/curate_scale.py [--documents 100000,1000000,5000000] [--workers 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from curate import measured

BLOCK = 10_000
WORDS = 50_000


def write(path: Path, documents: int, seed: int = 0) -> int:
    """Write lines of JSON; return how many of the documents are copies."""
    draw = np.random.default_rng(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letters[i] for i in draw.integers(0, 26, draw.integers(3, 10))) for _ in range(WORDS)]
    characters = [chr(code) for code in range(0x4E00, 0x4E00 + 5000)]
    copies = 0
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, documents, BLOCK):
            made: list[list[str]] = []
            for number in range(start, min(documents, start + BLOCK)):
                chinese = number % 4 == 3
                pool, glue = (characters, "") if chinese else (words, " ")
                if number % 5 == 4 and number % 4 != 3 and len(made) > 5:
                    text = list(made[4 * int(draw.integers(0, len(made) // 4))])  # one of the first of every four: not Chinese
                    text[-1] = words[int(draw.integers(0, WORDS))]
                    copies += 1
                else:
                    text = [pool[i] for i in draw.integers(0, len(pool), draw.integers(20, 61))]
                made.append(text)
                file.write(json.dumps({"text": glue.join(text)}, ensure_ascii=False) + "\n")
    return copies


def row(place: Path, documents: int, workers: int) -> dict[str, Any]:
    source, out = place / f"{documents}.jsonl", place / "out"
    copies = write(source, documents)
    command = [sys.executable, "-m", "danlu", "data", "dedup", str(source), "--output", str(out)]
    used = measured([*command, "--memory", "64MiB", "--workers", str(workers)], place / "log")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["records"] == documents == report["kept"] + report["rejected"]
    return {
        "documents": documents,
        "seconds": round(used["seconds"], 1),
        "cpu_seconds": round(used["cpu"], 1),
        "peak_gib": round(used["peak"] / 2**30, 3),
        "bytes": source.stat().st_size,
        "planted": copies,
        "removed": report["rejected"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", default="100000,1000000,5000000")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for documents in map(int, options.documents.split(",")):
        with tempfile.TemporaryDirectory(prefix="curate-scale-") as name:
            rows.append(row(Path(name), documents, options.workers))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

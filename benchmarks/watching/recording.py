"""What recording takes of a step's processor time at the recipe's defaults: statistics every 20 steps, histograms every 50.

The quick start's shape (4.2 M parameters, vocabulary 4,096), 8 samples of 256 tokens. Plain steps, steps whose tensors are
observed and steps whose histograms are taken as well alternate; then what follows a step is timed alone: figures, the machine's
counters, statistics of the batch, and the thread that writes them to disk. Processor time is that of all threads, so that other
programs matter little; medians over the rounds.

    recording_share                  without histograms
    recording_share_with_histograms  with them

Usage: python benchmarks/watching/recording.py --engine torch|paddle [--rounds 15] --json FILE
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from danlu import engines
from danlu.data.batches import TrainingBatches
from danlu.engines.base import Observed
from danlu.recipe import parse, resolve_shape
from danlu.train.recording import Recording
from danlu.watch.recorder import Recorder

VOCABULARY, LENGTH, BATCH = 4096, 256, 8
WARM, STEPS = 2, 300


class Tokens:
    """A stream of random tokens, as the loader's is."""

    tokens = 400_000
    masked = False

    def __init__(self) -> None:
        self.all = np.random.default_rng(0).integers(1, VOCABULARY, self.tokens)

    def window(self, start: int, length: int) -> Any:
        return self.all[start : start + length]

    def document_starts(self, start: int, end: int) -> Any:
        return np.arange(start + 100 - start % 100, end, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["torch", "paddle"], required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    recipe = parse(
        {
            "name": "recording",
            "model": {"preset": "llama-5m", "vocab_size": VOCABULARY},
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": LENGTH},
            "train": {"engine": options.engine, "global_batch": BATCH, "device": "cpu"},
        }
    )
    engine: Any = engines.create(recipe, resolve_shape(recipe, VOCABULARY))
    engine.initialise()
    stream: Any = Tokens()
    batches = TrainingBatches(
        stream, sequence_length=LENGTH, global_batch=BATCH, micro_batch=recipe.micro_batch, document_mask=True, seed=0
    )
    taken = next(engine.loader(batches, range(1), 0))
    spent: dict[str, list[float]] = defaultdict(list)
    observed: dict[str, Observed] = {}
    for number in range(options.rounds + WARM):
        kinds = ["plain", "statistics", "histograms"]
        for kind in kinds[number % 3 :] + kinds[: number % 3]:
            start = time.process_time()
            if kind == "plain":
                result = engine.train_step(taken, 1e-4)
            else:
                result, observed[kind] = engine.observed_step(taken, 1e-4, kind == "histograms")
            if number >= WARM:
                spent[kind].append(time.process_time() - start)
        print("  ".join(f"{kind} {each[-1]:.3f} s" for kind, each in spent.items()), flush=True)
    plain = statistics.median(spent["plain"])
    engine_extra = {kind: statistics.median(spent[kind]) - plain for kind in observed}
    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:

        def after(kind: str | None, steps: int) -> float:
            """Seconds a step of what follows it, the writing thread included."""
            with Recorder.open(Path(folder) / f"{kind}.sqlite") as recorder:
                recorder.start_segment(1, {})
                recording = Recording(recipe, engine, batches, recorder)
                start = time.process_time()
                for step in range(1, steps + 1):
                    recording.observed = None if kind is None else observed[kind]
                    recording.step(step, step - 1, result, {"train/loss": result.loss, "train/gradient_norm": 1.0}, plain, 0.0)
                recorder.flush()
                return (time.process_time() - start) / steps

        every_step = after(None, STEPS)
        due = {kind: after(kind, 10) - every_step + engine_extra[kind] for kind in observed}
    share = _share(recipe.watch.statistics_every, 0, every_step, due) / plain
    with_histograms = _share(recipe.watch.statistics_every, recipe.watch.histograms_every, every_step, due) / plain
    found = {
        "recording_share": share,
        "recording_share_with_histograms": with_histograms,
        "step_ms": 1000 * plain,
        "every_step_ms": 1000 * every_step,
        "statistics_ms": 1000 * due["statistics"],
        "histograms_ms": 1000 * due["histograms"],
    }
    options.json.write_text(json.dumps(found, indent=2) + "\n")


def _share(statistics_every: int, histograms_every: int, every_step: float, due: dict[str, float]) -> float:
    """Mean seconds a step over a whole number of both cycles; a step with histograms has its statistics with them."""
    cycle = statistics_every * (histograms_every or 1)
    is_due: Callable[[int, int], bool] = lambda every, step: every > 0 and step % every == 0  # noqa: E731
    histograms = sum(is_due(histograms_every, step) for step in range(cycle))
    alone = sum(is_due(statistics_every, step) and not is_due(histograms_every, step) for step in range(cycle))
    return every_step + (alone * due["statistics"] + histograms * due["histograms"]) / cycle


if __name__ == "__main__":
    main()

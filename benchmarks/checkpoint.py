"""What saving costs a training step: in the background, and with training standing still.

A 42 M-parameter Llama shape (hidden 512, 8 layers, vocabulary 32,000, embeddings tied), sequence 256, batch 4, bf16 autocast with
FP32 weights and moments: 0.5 GB a checkpoint. In turn, plain steps and a step that saves, each with danlu's engine and saver as
`danlu train` calls them; after a step that saves come more until the checkpoint is complete. Medians over the rounds.

    save_step_ratio     the step that begins the save, after the copy / the median of the plain steps right before it
    copy_seconds        how long that step first stood still while the state was copied to host memory
    background_seconds  from the begin of the copy until the checkpoint is complete
    lost_seconds        what all steps until then took more than plain ones, copy and completion included
    standstill_seconds  the same checkpoint written while training waits
    copy_mib            host memory that the copy takes

Usage: python benchmarks/checkpoint.py [--pairs 6] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from danlu import engines
from danlu.recipe import parse, resolve_shape
from danlu.train.saver import Saver

SEQUENCE, BATCH, WARM = 256, 4, 3
PLAIN = 5
"""Plain steps before each that saves. The first is left out: a processor that has rested is faster for a while."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    recipe = parse(
        {
            "name": "checkpoint",
            "model": {"preset": "llama-42m", "vocab_size": 32000},
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": SEQUENCE},
            "train": {"global_batch": BATCH, "precision": "bf16"},
        }
    )
    engine: Any = engines.create(recipe, resolve_shape(recipe, 32000))
    engine.initialise()
    tokens = torch.randint(0, 32000, (1, BATCH, SEQUENCE + 1))
    batch = {"inputs": tokens[..., :-1], "targets": tokens[..., 1:]}
    found: dict[str, list[float]] = defaultdict(list)

    def step(saver: Saver | None = None) -> float:
        start = time.perf_counter()
        engine.train_step(batch, 1e-4)
        if saver is not None:
            saver.finish(wait=False)
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
        saver = Saver(engine, Path(folder))
        for number in range(WARM):  # the copy's memory is new to the first save
            step()
            saver.begin(number, {}, 1, background=True)
            saver.finish(wait=True)
        for number in range(WARM, WARM + options.pairs):
            plain = statistics.median([step() for _ in range(PLAIN)][1:])
            begun = time.perf_counter()
            saver.begin(number, {}, 1, background=True)
            copied = time.perf_counter() - begun
            first = step(saver)
            steps = 1
            while saver.part is not None:
                step(saver)
                steps += 1
            background = time.perf_counter() - begun
            start = time.perf_counter()
            saver.begin(number, {}, 1, background=False)
            saver.finish(wait=True)
            found["standstill_seconds"].append(time.perf_counter() - start)
            found["save_step_ratio"].append(first / plain)
            found["copy_seconds"].append(copied)
            found["background_seconds"].append(background)
            found["lost_seconds"].append(background - steps * plain)
            found["plain_step_seconds"].append(plain)
            print("  ".join(f"{name} {values[-1]:.3f}" for name, values in found.items()), flush=True)
    result = {name: statistics.median(values) for name, values in found.items()}
    result["copy_mib"] = sum(tensor.nbytes for tensor in engine.buffers.held.values()) / 2**20
    for name, value in result.items():
        print(f"{name:<20} {value:10.3f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

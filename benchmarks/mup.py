"""Whether the best learning rate of a narrow model is a wide one's: three widths x a sweep of rates, with µP and without.

The text is the quick start's, the models have two layers and heads of one size, the narrowest is the base. Every run is kept as
it ends, in runs/benchmark-mup, so that a benchmark that was stopped goes on, and one with more rates trains only what is new.

    best_lr_by_width_mup, _standard   width -> the vertex of a parabola through the best rate of the sweep and its neighbours
    drift_steps_mup, _standard        how many steps of the sweep, a factor of 2 each, lie between the smallest and the largest
    lr_transfers                      1: within one step with µP, and further apart without
    carried_loss_mup, _standard       the loss of the widest at the narrowest's best rate of the sweep, less its loss at its own
    coordinates_mup, _standard        the largest power of the width that 4 steps move a part of the model by

Usage: python benchmarks/mup.py [--widths 32,64,128] [--steps 100] [--seeds 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from danlu.data.batches import TrainingBatches, evaluation_batches
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.engines.torch.engine import TorchEngine
from danlu.plan.rates import Swept, best_rate
from danlu.recipe import Recipe, load, parse, resolve_shape
from danlu.train.schedule import learning_rate
from danlu.widths import coordinate_check

QUICKSTART = Path(__file__).resolve().parents[1] / "recipes" / "quickstart.yaml"
HEAD = 32
RATES = [2.0**power for power in range(-10, -2)]
FAR = 1.5
"""Once a rate's loss is so many times the best of its width, higher rates are left out: they would be worse still."""


def recipe_of(width: int, base: int | None, rate: float, steps: int, seed: int) -> Recipe:
    """A model of two layers; base is that of µP."""
    sources = [source.model_dump() for source in load(QUICKSTART, ()).data.sources]
    model: dict[str, Any] = {
        "layers": 2,
        "hidden_size": width,
        "ffn_size": 3 * width,
        "heads": width // HEAD,
        "max_sequence_length": 64,
        "mup": None if base is None else {"base_hidden_size": base},
    }
    return parse(
        {
            "name": "mup",
            "stages": ["prepare", "train"],
            "model": model,
            "data": {
                "sources": sources,
                "tokenizer": {"train": {"vocab_size": 512, "sample_bytes": 4_000_000}},
                "sequence_length": 64,
                "validation_fraction": 0.01,
                "workers": 0,
            },
            "train": {
                "device": "cpu",
                "steps": steps,
                "global_batch": 16,
                "seed": seed,
                "optimizer": {"learning_rate": rate},
                "schedule": {"warmup_fraction": 0.1},
            },
        }
    )


def trained(recipe: Recipe, prepared: Prepared) -> float | None:
    """Validation loss after the last step; None: it is not finite."""
    engine = TorchEngine(recipe, resolve_shape(recipe, prepared.vocab_size))
    engine.initialise()
    train, data = recipe.train, recipe.data
    batches = TrainingBatches(
        prepared.train,
        sequence_length=data.sequence_length,
        global_batch=train.global_batch,
        micro_batch=recipe.micro_batch,
        document_mask=data.document_mask,
        seed=train.seed,
    )
    peak, warmup = train.optimizer.learning_rate, recipe.warmup_steps
    for step in range(train.steps):
        rate = learning_rate(step, name="cosine", peak=peak, steps=train.steps, warmup_steps=warmup, final_ratio=0.1)
        batch = {name: torch.as_tensor(array) for name, array in batches[step].items()}
        if engine.train_step(batch, rate).skipped is not None:
            return None
    nats = tokens = 0.0
    for batch in evaluation_batches(
        prepared.validation, sequence_length=data.sequence_length, batch=32, document_mask=data.document_mask, max_tokens=32_768
    ):
        loss, counted = engine.evaluate(batch)
        nats, tokens = nats + loss, tokens + counted
    return nats / tokens if math.isfinite(nats) else None


class Runs:
    """Runs by their recipe, each kept as it ends."""

    def __init__(self, folder: Path, prepared: Prepared) -> None:
        self.file, self.prepared = folder / "losses.jsonl", prepared
        kept = self.file.read_text("utf-8").splitlines() if self.file.is_file() else []
        self.losses: dict[str, float | None] = dict(json.loads(line) for line in kept)

    def loss(self, recipe: Recipe) -> float | None:
        """Of the run that is kept, or of a new one."""
        name = hashlib.sha256((recipe.model_dump_json() + self.prepared.fingerprint).encode()).hexdigest()
        if name not in self.losses:
            self.losses[name] = trained(recipe, self.prepared)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, self.losses[name]]) + "\n")
        return self.losses[name]


def sweep(runs: Runs, width: int, base: int | None, steps: int, seeds: int) -> dict[float, float]:
    """Rate -> mean loss over the seeds, from low rates to where it is far from the best."""
    found: dict[float, float] = {}
    for rate in RATES:
        losses = [runs.loss(recipe_of(width, base, rate, steps, seed)) for seed in range(seeds)]
        finite = [loss for loss in losses if loss is not None]
        found[rate] = sum(finite) / len(finite) if len(finite) == seeds else math.inf
        if found[rate] > FAR * min(found.values()):
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="32,64,128")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-mup"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    widths = [int(width) for width in options.widths.split(",")]
    options.folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(options.folder, prepare(recipe_of(widths[0], None, 1e-3, 1, 0), options.folder / "data", print))
    figures: dict[str, Any] = {}
    for name, base in (("mup", widths[0]), ("standard", None)):
        best, found = {}, {}
        for width in widths:
            found[width] = sweep(runs, width, base, options.steps, options.seeds)
            best[width] = best_rate([Swept(rate, loss) for rate, loss in found[width].items()])
            told = "  ".join(f"{rate:.1e} {loss:.3f}" for rate, loss in found[width].items())
            edge = "" if best[width].inside else ", at the edge of the sweep"
            print(f"{name:8} width {width:4}: best {best[width].rate:.2e}{edge}  ({told})", flush=True)
        rates = [each.rate for each in best.values()]
        figures[f"best_lr_by_width_{name}"] = {str(width): each.rate for width, each in best.items()}
        figures[f"drift_steps_{name}"] = math.log2(max(rates) / min(rates))
        narrow = min(found[widths[0]], key=found[widths[0]].__getitem__)
        wide = found[widths[-1]]
        figures[f"carried_loss_{name}"] = wide.get(narrow, math.inf) - min(wide.values())
        check = coordinate_check(recipe_of(widths[-1], base, 4e-3, options.steps, 0))
        figures[f"coordinates_{name}"] = check["worst_growth"]
        print(f"{name:8} the best rates lie {figures[f'drift_steps_{name}']:.2f} steps apart", flush=True)
    figures["lr_transfers"] = int(figures["drift_steps_mup"] <= 1 < figures["drift_steps_standard"])
    figures["seconds"] = time.monotonic() - begun
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

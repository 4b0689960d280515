"""Some steps of a recipe on one engine, in a process of its own: torch and paddle never share one.

``python -m danlu.compare.steps JOB``: the JSON of a Job; what it says goes to its folder.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from danlu import engines
from danlu import recipe as recipes
from danlu.data.batches import TrainingBatches
from danlu.data.prepared import Prepared
from danlu.recipe import resolve_shape
from danlu.train.schedule import rate_at

RESULTS, STATE, TRACE = "results.json", "state.json", "trace-{}.npz"


@dataclass(frozen=True)
class Job:
    """Steps ``begin`` to ``end`` of a recipe, of which the state after ``middle`` and the last is kept."""

    recipe: str
    data: str
    folder: str
    """Where the outcome goes."""
    engine: str
    begin: int
    end: int
    start: str | None = None
    """A kept state to begin from; None: initial weights."""
    middle: int | None = None
    trace: bool = False
    """Keep outputs, gradients and updates of the last step (``Engine.traced_step``)."""

    def kept(self, step: int) -> Path:
        """Where the state after so many steps of the recipe is."""
        return Path(self.folder) / f"step-{step}"

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def work(job: Job) -> None:
    """Do it. UserError: the engine cannot."""
    plain = ["memory.recompute=none", "train.compile=false"] if job.trace else []  # every layer is to be seen, and once
    recipe = recipes.load(Path(job.recipe), [f"train.engine={job.engine}", *plain]).alone
    prepared = Prepared.open(Path(job.data))
    shape = resolve_shape(recipe, prepared.vocab_size)
    engine = engines.create(recipe, shape)
    if job.start is not None:
        engine.load(Path(job.start), json.loads((Path(job.start) / STATE).read_text("utf-8")))
    elif recipe.model.hugging_face is not None:
        engine.import_weights(Path(recipe.model.hugging_face).expanduser())
    else:
        engine.initialise()
    batches = TrainingBatches(
        prepared.train,
        sequence_length=recipe.data.sequence_length,
        global_batch=recipe.train.global_batch,
        micro_batch=recipe.micro_batch,
        document_mask=recipe.data.document_mask,
        seed=recipe.train.seed,
    )
    results = []
    for step, batch in zip(range(job.begin, job.end), engine.loader(batches, range(job.begin, job.end), 0), strict=True):
        if job.trace and step == job.end - 1:
            result, trace = engine.traced_step(batch, rate_at(recipe, step))
            for part, arrays in trace._asdict().items():
                np.savez(Path(job.folder) / TRACE.format(part), **arrays)
        else:
            result = engine.train_step(batch, rate_at(recipe, step))
        results.append((result.loss, result.gradient_norm))
        if step + 1 in (job.middle, job.end):
            job.kept(step + 1).mkdir()
            snapshot = engine.snapshot(copy=False)
            snapshot.write(job.kept(step + 1))
            (job.kept(step + 1) / STATE).write_text(json.dumps(snapshot.state), "utf-8")
    (Path(job.folder) / RESULTS).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    work(Job(**json.loads(sys.argv[1])))

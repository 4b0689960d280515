"""Trains runs with and without faults and notes what the doctor said. Started by run.py.

Each rank of each run is a process of its own, forked from this one, which has loaded all that a run needs and has trained
nothing: no run finds what another has left, and none waits for an import.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import shutil
import signal
import sys
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.doctor import faults_data, tuning
from benchmarks.doctor.fault import BASES, PLAIN, RESUMED, Base, Fault, Outcome
from benchmarks.doctor.run import faults, twin
from benchmarks.doctor.version import version
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.demo.corpus import write
from danlu.doctor.finding import Finding, Severity
from danlu.engines.torch.engine import TorchEngine
from danlu.errors import RunStopped
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.train.attended import Attendant
from danlu.train.loop import train
from danlu.train.position import Position
from danlu.watch import store

GRAVE = ("warning", "critical")


LIMIT = 600
"""Seconds of a run after which it is killed, and is not among the results."""
PORT = 29650
"""The first of those where the ranks of a run meet."""


class _Cut(BaseException):
    """The process is killed at this step."""


def recipe_of(folder: Path, base: Base, fault: Fault | None, seed: int) -> Recipe:
    """The plain recipe with the overrides of the base and the fault."""
    documents = (fault.documents if fault else None) or base.documents
    path = folder / f"corpus-{documents}.jsonl"
    tuned = []
    if base.tuned:
        path = tuning.conversations(folder, documents, fault.grammar if fault else 1)
        weights = tuning_weights(folder)
        tuned = [
            "train.objective=sft",
            f"model={{hugging_face: {json.dumps(str(weights))}}}",
            f"data.tokenizer={{path: {json.dumps(str(weights))}}}",
            f"doctor.retain={json.dumps(str(tuning.kept(folder)))}",
        ]
    tree = {
        "name": "bench",
        "stages": ["prepare", "train"],
        "model": {"layers": 2, "hidden_size": 64, "ffn_size": 128, "heads": 4, "max_sequence_length": 256},
        "data": {
            "sources": [{"path": str(path)}],
            "tokenizer": {"train": {"vocab_size": 400}},
            "sequence_length": 64,
            "validation_fraction": 0.05 if documents > 100 else 0.3,
            "workers": 0,
        },
        "train": {
            "device": "cpu",
            "seed": seed,
            "steps": 200,
            "global_batch": 8,
            "optimizer": {"learning_rate": 3e-3},
            "schedule": {"warmup_steps": 20},
            "evaluate_every": 10,
            "evaluate_tokens": 4096,
        },
        "watch": {"statistics_every": 10, "histograms_every": 0},
        "checkpoint": {"every": RESUMED if base.resumed else 1000},
        "doctor": {"time_share": 1.0},
    }
    return parse(tree, [*tuned, *base.overrides, *(fault.overrides if fault else ())])


def prepared_for(folder: Path, recipe: Recipe) -> Prepared:
    """Text and tokens, made once for all processes."""
    path = Path(recipe.data.sources[0].path)
    with locked(folder / "prepare.lock"):
        if not path.exists():
            write(path, int(path.stem.split("-")[1]))
        settings = f"{recipe.data.chat.template} {recipe.data.tokenizer.path}"
        place = folder / f"data-{path.stem}-{zlib.crc32(settings.encode()):08x}"
        return prepare(recipe, place, lambda _line: None)


def tuning_weights(folder: Path) -> Path:
    """Those of a healthy run of another seed, in the Hugging Face layout; made once for all processes."""
    with locked(folder / "weights.lock"):
        if (folder / "weights" / "config.json").is_file():
            return folder / "weights"
        recipe = recipe_of(folder, PLAIN, None, tuning.SEED)
        prepared, run = prepared_for(folder, recipe), folder / "runs" / "weights"
        run.mkdir(parents=True, exist_ok=True)
        engine = TorchEngine(recipe, resolve_shape(recipe, prepared.vocab_size))
        train(recipe, engine.shape, engine, prepared, run, io.StringIO())
        return tuning.exported(folder, recipe, engine, prepared)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def trained(run: Path, recipe: Recipe, prepared: Prepared, cut: int | None = None, until_found: bool = False) -> str:
    """Train with the real loop; return why it stopped itself. `until_found`: no further than the first finding that counts."""
    shape = resolve_shape(recipe, prepared.vocab_size)
    engine = TorchEngine(recipe, shape)
    engine.matmul_peak = lambda: None  # type: ignore[method-assign]  # a third of a second, and of no interest here
    honest, steps, found, news = engine.train_step, iter(range(10**9)), [False], Attendant.news

    def until(batch: Any, rate: float) -> Any:
        if next(steps) == cut or (until_found and found[0]):
            raise _Cut
        return honest(batch, rate)

    def noting(self: Attendant, position: Position) -> list[Finding]:
        made = news(self, position)
        found[0] |= any(one.severity >= Severity.WARNING for one in made)
        return made

    engine.train_step = until  # type: ignore[method-assign]
    ended = ""
    try:
        with suppress(_Cut), patch.object(Attendant, "news", noting):
            train(recipe, shape, engine, prepared, run, io.StringIO())
    except RunStopped as stop:
        ended = str(stop)
    return ended


def outcome(run: Path, ended: str) -> Outcome:
    """What the doctor said of it."""
    metrics = run / "metrics.sqlite"
    told = []
    for event in store.events(metrics):
        if event.kind in ("audit", "finding") and event.data["finding"]["severity"] in GRAVE:
            told.append((event.step, event.data["finding"]["rule"], event.data["finding"]["severity"], event.message))
        elif event.kind == "stop" and "replicas are not equal" in event.message:
            told.append((event.step, "replicas", "critical", event.message))
    losses = [float(value) for value in store.series(metrics, "train/loss")[1]]
    return Outcome(told, losses, ended)


def base_of(name: str, every: dict[str, Fault]) -> Base:
    """Of a fault or a twin."""
    return every[name].base if name in every else next(base for base in BASES.values() if twin(base) == name)


def one(folder: Path, name: str, seed: int, every: dict[str, Fault]) -> Outcome | None:
    """Train a run, the resumed ones in two parts; only the first rank has something to tell."""
    fault, base = every.get(name), base_of(name, every)
    recipe = recipe_of(folder, base, fault, seed)
    run = folder / "runs" / f"{name} {seed}".replace(":", "").replace(" ", "-")
    leads = os.environ.get("RANK", "0") == "0"
    if leads:
        shutil.rmtree(run, ignore_errors=True)
    prepared = prepared_for(folder, recipe)
    faults_data.END[0], faults_data.TRAIN[0] = prepared.end_id, prepared.train
    run.mkdir(parents=True, exist_ok=True)
    planted = fault.plant if fault else nullcontext
    if base.resumed:
        trained(run, recipe, prepared, cut=RESUMED)
    with planted():
        # Ranks that are ended by one of them would wait for it: such runs are short.
        ended = trained(run, recipe, prepared, until_found=fault is not None and base.processes == 1)
    made = outcome(run, ended) if leads else None
    if leads:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return made


def note(folder: Path, name: str, seed: int, every: dict[str, Fault], code: str) -> None:
    """Train a run and put what was said among the results."""
    made = one(folder, name, seed, every)
    if made is None:
        return
    finite = [loss if math.isfinite(loss) else None for loss in made.losses]
    line = json.dumps({"id": name, "seed": seed, "code": code, **asdict(made), "losses": finite})
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line + "\n")
    print(f"{name}, seed {seed}: {[(step, rule) for step, rule, *_ in made.told] or 'nothing'}", flush=True)


def forked(work: Callable[[], None], environment: dict[str, str]) -> int:
    """Do it in a process of its own; return its id."""
    if pid := os.fork():
        return pid
    failed = 1
    try:
        signal.alarm(LIMIT)
        os.environ.update(environment)
        work()
        failed = 0
    except Exception:  # the others go on; this one is not among the results, and is tried again the next time
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(failed)


def main() -> None:
    folder, keys, parallel = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    every, code = faults(), version()
    waiting, running = deque(enumerate(keys)), set[int]()
    while waiting or running:
        while waiting and len(running) < parallel:
            number, (name, seed) = waiting.popleft()
            work = partial(note, folder, name, seed, every, code)
            world = base_of(name, every).processes
            meet = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT + number)}
            for rank in range(world):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} | meet
                running.add(forked(work, place if world > 1 else {}))
        running.discard(os.wait()[0])


if __name__ == "__main__":
    main()

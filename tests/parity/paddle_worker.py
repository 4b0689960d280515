"""As worker.py, with the paddle engine: trains the cases that it is given, compares each with its reference, notes the worst."""

from __future__ import annotations

import gc
import json
import math
import os
import socket
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from cases import LEARNING_RATE, LENGTH, MODELS, MOVE_STEP, STEPS, Case, case_of, verdict
from paddle.distributed.fleet.base import topology
from paddle_faults import FAULTS
from stored import tensors

from danlu.engines.base import NOTHING_SUPERVISED, Sampling
from danlu.engines.paddle.engine import PaddleEngine
from danlu.engines.paddle.fully_sharded import whole
from danlu.engines.paddle.pieces import own_region
from danlu.engines.paddle.slices import array_of, fill
from danlu.model.drawing import EMBEDDING
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.recipe.train_sections import LoraSection

Batch = dict[str, np.ndarray]
Curve = list[tuple[float, float]]
GREEDY = Sampling(max_tokens=12, temperature=0.0, top_k=0, top_p=1.0, seed=0)
PROMPTS = ([1], [5, 3, 8, 90, 2, 2, 40])


def global_batch(case: Case, step: int) -> Batch:
    """A whole batch of a step, (samples, length), the same in every layout."""
    size, random = case.global_batch, np.random.default_rng(1000 + step)
    vocabulary = {"vocab_size": 101, **MODELS[case.model]}["vocab_size"]
    tokens = random.integers(0, vocabulary, (size, LENGTH + 1))
    batch = {"inputs": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}
    batch["targets"][random.random((size, LENGTH)) < 0.2] = -100
    batch["targets"][step % size] = -100
    if case.batch == "empty" and step % 4 == 1:
        batch["targets"][:] = -100
    if case.batch == "half":
        batch["targets"][: size // 2] = -100
    if case.batch != "nomask":
        # The second document begins elsewhere in each sample.
        starts, columns = random.integers(2, LENGTH - 2, (size, 1)), np.tile(np.arange(LENGTH), (size, 1))
        batch["documents"] = (columns >= starts).astype(np.int32)
        batch["positions"] = np.where(columns >= starts, columns - starts, columns)
    return batch


def own_batch(engine: PaddleEngine, case: Case, step: int) -> Batch:
    """This process's slice, (micro_batches, micro_batch, length)."""
    whole = global_batch(case, step)
    whole["samples"] = step * case.global_batch + np.arange(case.global_batch)
    mine = {name: np.split(array, engine.recipe.parallel.data)[engine.data_rank] for name, array in whole.items()}
    return {name: array.reshape(-1, engine.recipe.micro_batch, *array.shape[1:]) for name, array in mine.items()}


def recipe_of(case: Case) -> Recipe:
    """With adapters beside weights that come from no folder, which a person's recipe may not ask for."""
    recipe = parse(case.tree(), ["train.engine=paddle"])
    adapters = LoraSection(rank=4) if case.lora else None
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"lora": adapters})})


def start(case: Case) -> PaddleEngine:
    """An engine with the same weights in every layout. No two entries of a norm or a bias are equal, as after some training."""
    recipe = recipe_of(case)
    engine = PaddleEngine(recipe, resolve_shape(recipe, recipe.model.vocab_size))
    engine.initialise()
    for name, parameter in engine.parameters.items():
        if parameter.ndim == 1:
            shape, random = engine.shapes[name], np.random.default_rng(zlib.crc32(name.encode()))
            whole = (name.endswith("norm.weight") + 0.1 * random.standard_normal(shape)).astype(np.float32)
            fill(name, parameter, whole, engine.layout)
    engine.evaluate(global_batch(case, STEPS))  # as a run does before its first step
    return engine


def train(engine: PaddleEngine, case: Case, steps: range) -> Curve:
    """Loss and gradient norm of the steps that were made; those without a target must not be."""
    results = [engine.train_step(own_batch(engine, case, step), LEARNING_RATE) for step in steps]
    assert all(result.skipped in (None, NOTHING_SUPERVISED) for result in results), results
    return [(result.loss, result.gradient_norm) for result in results if result.skipped is None]


def outcome(engine: PaddleEngine, curve: Curve, case: Case) -> dict[str, Any]:
    """What is compared: the curve, an evaluation and greedy continuations after it, and this process's weights."""
    nats, supervised = engine.evaluate(global_batch(case, STEPS))
    assert engine.layout.zero_stage < 3 or not any(each._is_initialized() for each in engine.parameters.values())
    weights = {name: array_of(name, whole(tensor, engine.layout)) for name, tensor in engine.parameters.items()}
    made = {"curve": curve, "evaluation": nats / supervised, "weights": weights, "layout": engine.layout, "shapes": engine.shapes}
    if case.generates and not case.compile:  # a graph is compiled for training steps
        made["tokens"] = [list(engine.generate(prompt, GREEDY, end_id=None)) for prompt in PROMPTS]
    _, observed = engine.observed_step(own_batch(engine, case, STEPS), LEARNING_RATE, histograms=False)
    made["sums"] = {" ".join(key): sums.squares**0.5 for key, sums in observed.tensors.items()}
    return made


def _same(sums: dict[str, float], wanted: dict[str, float]) -> bool:
    """Norms of weights, gradients, updates and, where they are seen, activations of a step. A bias of keys has next to none."""
    seen = {key for key in wanted if not key.startswith("activation")} <= sums.keys() <= wanted.keys()
    return seen and all(abs(value - wanted[key]) <= 1e-3 * wanted[key] + 1e-5 for key, value in sums.items())


class Comparison:
    """Runs cases; what it has trained is kept, so that recomputation is compared with the layout without."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[str, dict[str, Any]] = {}

    def reference(self, case: Case) -> None:
        """Train the one-process float32 run and leave it as files."""
        reference = Case.of(case.reference)
        made = outcome(engine := start(reference), train(engine, reference, range(STEPS)), reference)
        place = self.folder / reference.words
        np.savez(f"{place}.npz", **made["weights"])
        Path(f"{place}.json").write_text(json.dumps({name: made.get(name) for name in ("curve", "evaluation", "tokens", "sums")}))

    def case(self, case: Case) -> dict[str, Any]:
        """The worst errors of a case over all processes."""
        made = outcome(engine := start(case), train(engine, case, range(STEPS)), case)
        self.kept[case.words] = made
        errors = self.errors(case, made)
        if case.plain is not None:
            if case.plain not in self.kept:
                other = Case.of(case.plain)
                self.kept[other.words] = outcome(engine := start(other), train(engine, other, range(STEPS)), other)
            errors["same_bits"] = not engine.agree(not _identical(made, self.kept[case.plain]))
        return errors

    def save(self, case: Case) -> dict[str, Any]:
        """Train half of the steps and leave a checkpoint."""
        engine = start(case)
        curve = train(engine, case, range(MOVE_STEP))
        state = self.checkpoint(engine, place := self.folder / f"from {case.words}")
        if engine.rank == 0:
            (place / "state").write_text(json.dumps([state, curve]))
        return {}

    def checkpoint(self, engine: PaddleEngine, place: Path) -> Any:
        """Every process's part; complete when this returns."""
        place.mkdir(exist_ok=True)
        engine.layout.barrier()
        state = engine.save(place)
        engine.layout.barrier()
        return state

    def load(self, source: Case, case: Case) -> dict[str, Any]:
        """Go on from another layout's checkpoint; whether it is saved again as it was, to the bit; the worst errors."""
        place = self.folder / f"from {source.words}"
        state, before = json.loads((place / "state").read_text())
        engine = start(case)
        engine.load(place, state)
        self.checkpoint(engine, again := self.folder / f"{source.words} saved from {case.words}")
        same = tensors(again) == tensors(place) and self.export(engine, again, case) == self.export(engine, place, case)
        curve = train(engine, case, range(MOVE_STEP, STEPS))
        made = outcome(engine, [*map(tuple, before), *curve], case)
        return {**self.errors(case, made), "same_save": not engine.agree(not same)}

    def export(self, of: PaddleEngine, folder: Path, case: Case) -> bytes:
        """What one process exports of a checkpoint."""
        if of.rank > 0:
            return b""
        with patch.dict(os.environ, {"WORLD_SIZE": "1"}), TemporaryDirectory() as place:
            recipe = recipe_of(case).alone
            engine = PaddleEngine(recipe, resolve_shape(recipe, recipe.model.vocab_size))
            engine.load_weights(folder)
            engine.export_weights(Path(place), "fp32")
            return (Path(place) / "model.safetensors").read_bytes()

    def fault(self, name: str) -> dict[str, Any]:
        """The same comparison with something wrong on purpose."""
        words, plant = FAULTS[name]
        with plant():
            return Comparison(self.folder).case(Case.of(words))

    def errors(self, case: Case, made: dict[str, Any]) -> dict[str, Any]:
        place = self.folder / case.reference
        wanted = json.loads(Path(f"{place}.json").read_text())
        with np.load(f"{place}.npz") as file:
            weights = {name: file[name] for name in file.files}
        pairs = list(zip(made["curve"], wanted["curve"], strict=True))
        errors = {
            "loss": max(abs(got[0] - want[0]) / want[0] for got, want in pairs),
            "norm": max(abs(got[1] - want[1]) / want[1] for got, want in pairs),
            "evaluation": abs(made["evaluation"] - wanted["evaluation"]) / wanted["evaluation"],
            "weights": max(_distance(name, array, weights, made["layout"]) for name, array in made["weights"].items()),
        }
        everybody = made["layout"].gather({name: error if math.isfinite(error) else math.inf for name, error in errors.items()})
        worst: dict[str, Any] = {name: max(each[name] for each in everybody) for name in errors}
        worst["same_sums"] = _same(made["sums"], wanted["sums"])  # all have those over all processes
        if "tokens" in made:
            worst["same_tokens"] = not made["layout"].any(made["tokens"] != wanted["tokens"])
        return worst


def _distance(name: str, piece: np.ndarray, weights: dict[str, np.ndarray], layout: Any) -> float:
    wanted = weights[name] if name in weights else weights[EMBEDDING]  # a tied copy
    wanted_piece = wanted[own_region(name, wanted.shape, layout)]
    real = piece[tuple(map(slice, wanted_piece.shape))]  # the rest fills the vocabulary up
    if real.size < piece.size and piece[len(real) :].any():
        return math.inf
    return float(np.abs(real - wanted_piece).max(initial=0) / np.abs(wanted).max())


def _identical(left: dict[str, Any], right: dict[str, Any]) -> bool:
    same = all(np.array_equal(array, right["weights"][name]) for name, array in left["weights"].items())
    return same and left["curve"] == right["curve"] and left["evaluation"] == right["evaluation"]


def free_port(rank: int, port: Path) -> int:
    """One that the first process has found free."""
    if rank == 0:
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", 0))
            port.with_suffix(".new").write_text(str(trial.getsockname()[1]))
        port.with_suffix(".new").rename(port)
    while not port.exists():
        time.sleep(0.01)
    return int(port.read_text())


def work(rank: int, processes: int, folder: Path, jobs: list[tuple[str, str]], port: Path) -> None:
    """Do the jobs, (kind, words) each; process 0 notes the beginning and the end of each in ``results``.

    What goes wrong in one process ends all of them: the others would wait for it.
    """
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(free_port(rank, port))
    comparison = Comparison(folder)

    def note(**line: Any) -> None:
        with (folder / "results").open("a") as file:
            file.write(json.dumps(line) + "\n")

    does: dict[str, Callable[[str], dict[str, Any] | None]] = {
        "reference": lambda words: comparison.reference(Case.of(words)),
        "case": lambda words: comparison.case(Case.of(words)),
        "save": lambda words: comparison.save(Case.of(words)),
        "load": lambda words: comparison.load(*map(Case.of, words.split(" -> "))),
        "fault": comparison.fault,
    }
    for kind, words in jobs:
        topology._HYBRID_PARALLEL_GROUP = None  # Fleet takes one layout a process
        if rank == 0:
            note(kind=kind, words=words)
        begun = time.monotonic()
        try:
            errors = does[kind](words)
        except BaseException:
            note(kind=kind, words=words, failed=f"rank {rank}: {traceback.format_exc()}")
            os._exit(1)
        if rank == 0:
            good = verdict(case_of((kind, words), FAULTS), errors or {})
            note(kind=kind, words=words, done=errors or {}, good=good, seconds=time.monotonic() - begun)
        gc.collect()

"""One process of a layout: trains the cases that it is given, compares each with its reference, and notes the worst error."""

from __future__ import annotations

import gc
import json
import math
import os
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from cases import DROPOUT, LEARNING_RATE, LENGTH, MODELS, MOVE_STEP, STEPS, Case, case_of, verdict
from faults import FAULTS
from safetensors.torch import load_file, save_file
from stored import tensors
from torch.distributed import TCPStore

from danlu.engines.base import NOTHING_SUPERVISED, Sampling
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.pieces import fill, gather
from danlu.model.families import to_hugging_face
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.recipe.objective_sections import DistillSection
from danlu.recipe.train_sections import LoraSection

Batch = dict[str, torch.Tensor]
Curve = list[tuple[float, float]]
GREEDY = Sampling(max_tokens=12, temperature=0.0, top_k=0, top_p=1.0, seed=0)
PROMPTS = ([1], [5, 3, 8, 90, 2, 2, 40])


def global_batch(case: Case, step: int) -> Batch:
    """A whole batch of a step, (samples, length), the same in every layout."""
    size = case.global_batch
    random = torch.Generator().manual_seed(1000 + step)
    vocabulary = {"vocab_size": 101, **MODELS[case.model]}["vocab_size"]
    tokens = torch.randint(0, vocabulary, (size, LENGTH + 1), generator=random)
    batch = {"inputs": tokens[:, :-1].clone(), "targets": tokens[:, 1:].clone()}
    batch["targets"][torch.rand(size, LENGTH, generator=random) < 0.2] = -100
    batch["targets"][step % size] = -100
    if case.batch == "empty" and step % 4 == 1:
        batch["targets"][:] = -100
    if case.batch == "half":
        batch["targets"][: size // 2] = -100
    if case.batch != "nomask":
        # The second document begins elsewhere in each sample.
        starts = torch.randint(2, LENGTH - 2, (size, 1), generator=random)
        columns = torch.arange(LENGTH).expand(size, -1)
        batch["documents"] = (columns >= starts).int()
        batch["positions"] = torch.where(columns >= starts, columns - starts, columns)
    return batch


def own_batch(engine: TorchEngine, case: Case, step: int) -> Batch:
    """This process's slice, (micro_batches, micro_batch, length)."""
    whole = global_batch(case, step)
    whole["samples"] = step * case.global_batch + torch.arange(case.global_batch)
    mine = {name: tensor.chunk(engine.recipe.parallel.data)[engine.data_rank] for name, tensor in whole.items()}
    return {name: tensor.unflatten(0, (-1, engine.recipe.micro_batch)) for name, tensor in mine.items()}


def recipe_of(case: Case) -> Recipe:
    """With adapters beside weights that come from no folder, which a person's recipe may not ask for."""
    recipe = parse(case.tree())
    adapters = LoraSection(rank=4) if case.lora else None
    if case.dora:
        adapters = LoraSection(rank=4, base="int8", dora=True, dropout=DROPOUT)
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"lora": adapters})})


def beside(recipe: Recipe, case: Case, place: Path) -> Recipe:
    """With a second model, drawn from another seed, in a folder."""
    alone = recipe.alone
    alone = alone.model_copy(update={"train": alone.train.model_copy(update={"seed": 1, "lora": None})})
    shape = resolve_shape(alone, recipe.model.vocab_size)
    with patch.dict(os.environ, {"WORLD_SIZE": "1"}):
        engine = TorchEngine(alone, shape)
        engine.initialise()
        engine.export_weights(place, "fp32")
    (place / "config.json").write_text(json.dumps(to_hugging_face(shape, bos_token_id=None, eos_token_id=None)))
    told = {"objective": case.objective, "distill": DistillSection(teacher=str(place), temperature=2.0)}
    model = recipe.model.model_copy(update={"hugging_face": str(place)} if case.objective == "dpo" else {})
    return recipe.model_copy(update={"model": model, "train": recipe.train.model_copy(update=told)})


@torch.no_grad()
def start(case: Case) -> TorchEngine:
    """An engine with the same weights in every layout. No two entries of a norm or a bias are equal, as after some training."""
    recipe = recipe_of(case)
    with TemporaryDirectory() as place:
        if case.objective != "pretrain":
            recipe = beside(recipe, case, Path(place))
        engine = TorchEngine(recipe, resolve_shape(recipe, recipe.model.vocab_size))
        engine.initialise()
        assert engine.objective is not None  # reads the second model, while it is there
    for name, parameter in engine.parameters.items():
        if parameter.ndim == 1:
            random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            fill(parameter, name.endswith("norm.weight") + 0.1 * torch.randn(parameter.shape, generator=random))
    return engine


def train(engine: TorchEngine, case: Case, steps: range) -> Curve:
    """Loss and gradient norm of the steps that were made; those without a target must not be."""
    results = [engine.train_step(own_batch(engine, case, step), LEARNING_RATE) for step in steps]
    assert all(result.skipped in (None, NOTHING_SUPERVISED) for result in results), results
    return [(result.loss, result.gradient_norm) for result in results if result.skipped is None]


def outcome(engine: TorchEngine, curve: Curve, case: Case) -> dict[str, Any]:
    """What is compared: the curve, an evaluation and greedy continuations after it, and this process's weights, each whole."""
    nats, supervised = engine.evaluate(global_batch(case, STEPS))
    weights = {name: gather(tensor.detach()).clone() for name, tensor in engine.parameters.items()}
    made = {"curve": curve, "evaluation": nats / supervised, "weights": weights}
    if case.generates:
        made["tokens"] = [list(engine.generate(prompt, GREEDY, end_id=None)) for prompt in PROMPTS]
    return made


class Comparison:
    """Runs cases; what it has trained is kept, so that recomputation and offload are compared with the layout without."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[str, dict[str, Any]] = {}

    def reference(self, case: Case) -> None:
        """Train the one-process float32 run and leave it as files."""
        reference = Case.of(case.reference)
        made = outcome(engine := start(reference), train(engine, reference, range(STEPS)), reference)
        place = self.folder / reference.words
        save_file(made["weights"], f"{place}.safetensors")
        Path(f"{place}.json").write_text(json.dumps({name: it for name, it in made.items() if name != "weights"}))

    def case(self, case: Case) -> dict[str, Any]:
        """The worst errors of a case over all processes."""
        made = outcome(engine := start(case), train(engine, case, range(STEPS)), case)
        self.kept[case.words] = made
        errors = self.errors(case, made)
        if case.plain is not None:
            if case.plain not in self.kept:
                other = Case.of(case.plain)
                self.kept[other.words] = outcome(engine := start(other), train(engine, other, range(STEPS)), other)
            errors["same_bits"] = _worst(float(not _identical(made, self.kept[case.plain]))) == 0
        return errors

    def save(self, case: Case) -> dict[str, Any]:
        """Train half of the steps and leave a checkpoint."""
        engine = start(case)
        curve = train(engine, case, range(MOVE_STEP))
        state = self.checkpoint(engine, place := self.folder / f"from {case.words}")
        if engine.rank == 0:
            (place / "state").write_text(json.dumps([state, curve]))
        return {}

    def checkpoint(self, engine: TorchEngine, place: Path) -> Any:
        """Every process's part; complete when this returns."""
        place.mkdir(exist_ok=True)
        dist.barrier()
        state = engine.save(place)
        dist.barrier()
        return state

    def load(self, source: Case, case: Case) -> dict[str, Any]:
        """Go on from another layout's checkpoint; whether it is saved again as it was, to the bit; the worst errors."""
        place = self.folder / f"from {source.words}"
        state, before = json.loads((place / "state").read_text())
        engine = start(case)
        engine.load(place, state)
        self.checkpoint(engine, again := self.folder / f"{source.words} saved from {case.words}")
        same = tensors(again) == tensors(place) and _export(again, case) == _export(place, case)
        curve = train(engine, case, range(MOVE_STEP, STEPS))
        made = outcome(engine, [*map(tuple, before), *curve], case)
        return {**self.errors(case, made), "same_save": _worst(float(not same)) == 0}

    def fault(self, name: str) -> dict[str, Any]:
        """The same comparison with something wrong on purpose."""
        words, plant = FAULTS[name]
        with plant():
            return Comparison(self.folder).case(Case.of(words))

    def errors(self, case: Case, made: dict[str, Any]) -> dict[str, Any]:
        place = self.folder / case.reference
        wanted = json.loads(Path(f"{place}.json").read_text())
        weights = load_file(f"{place}.safetensors")
        pairs = list(zip(made["curve"], wanted["curve"], strict=True))
        errors = {
            "loss": max(abs(got[0] - want[0]) / want[0] for got, want in pairs),
            "norm": max(abs(got[1] - want[1]) / want[1] for got, want in pairs),
            "evaluation": abs(made["evaluation"] - wanted["evaluation"]) / wanted["evaluation"],
            "weights": max(_distance(tensor, weights, name) for name, tensor in made["weights"].items()),
        }
        worst: dict[str, Any] = {name: _worst(error) for name, error in errors.items()}
        if "tokens" in made:
            worst["same_tokens"] = _worst(float(made["tokens"] != wanted["tokens"])) == 0
        return worst


def _distance(tensor: torch.Tensor, weights: dict[str, torch.Tensor], name: str) -> float:
    wanted = weights[name] if name in weights else weights["model.embed_tokens.weight"]  # a tied copy
    return float((tensor - wanted).abs().max() / wanted.abs().max())


def _identical(left: dict[str, Any], right: dict[str, Any]) -> bool:
    same = all(torch.equal(tensor, right["weights"][name]) for name, tensor in left["weights"].items())
    return same and left["curve"] == right["curve"] and left["evaluation"] == right["evaluation"]


def _worst(error: float) -> float:
    """Over all processes; a NaN counts as the worst."""
    values: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(values, error if math.isfinite(error) else math.inf)
    return max(values)


def _export(folder: Path, case: Case) -> bytes:
    """What one process exports of a checkpoint."""
    if dist.get_rank() > 0:
        return b""
    with patch.dict(os.environ, {"WORLD_SIZE": "1"}), TemporaryDirectory() as place:
        recipe = recipe_of(case).alone
        engine = TorchEngine(recipe, resolve_shape(recipe, recipe.model.vocab_size))
        engine.load_weights(folder)
        engine.export_weights(Path(place), "fp32")
        return (Path(place) / "model.safetensors").read_bytes()


def meet(rank: int, port: Path) -> TCPStore:
    """Where the processes meet. The first of them has it: a thread of it here could hold a lock when the next is forked."""
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.with_suffix(".new").write_text(str(store.port))
        port.with_suffix(".new").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return TCPStore("127.0.0.1", int(port.read_text()), is_master=False)


def work(rank: int, processes: int, folder: Path, jobs: list[tuple[str, str]], port: Path) -> None:
    """Do the jobs, (kind, words) each; process 0 notes the beginning and the end of each in ``results``.

    What goes wrong in one process ends all of them: the others would wait for it.
    """
    store = meet(rank, port)
    torch.set_num_threads(1)
    os.environ["WORLD_SIZE"] = str(processes)
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
    for number, (kind, words) in enumerate(jobs):
        dist.init_process_group("gloo", store=dist.PrefixStore(f"{jobs[0]}{number}", store), rank=rank, world_size=processes)
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
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()

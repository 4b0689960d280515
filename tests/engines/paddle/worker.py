"""What the tests of the paddle engine have done in a process of its own, since torch and paddle never share one.

``python worker.py FOLDER``: every folder in it holds job.json and what the job reads; the outcome goes to out.npz beside it, or
to error.txt, where it is a UserError.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from danlu.engines.base import Sampling
from danlu.engines.paddle import engine as engines
from danlu.engines.paddle import statistics
from danlu.engines.paddle.decoder import CausalLM
from danlu.engines.paddle.device import device_for
from danlu.engines.paddle.dropout import Dropout
from danlu.engines.paddle.engine import PaddleEngine, paddle
from danlu.engines.paddle.gpus import gpus
from danlu.engines.paddle.masters import Masters
from danlu.engines.paddle.pieces import turned
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import parse

from paddle.amp.auto_cast import amp_initialize  # isort: skip - after paddle is loaded as danlu loads it

Arrays = dict[str, np.ndarray]


def engine_of(job: dict[str, Any]) -> PaddleEngine:
    tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x.txt"}]}}
    overrides = ["train.device=cpu", "train.engine=paddle", *job.get("overrides", [])]
    return PaddleEngine(parse(tree, overrides), ModelShape.model_validate(job["shape"]))


def logits(folder: Path, job: dict[str, Any]) -> Arrays:
    """Logits, the loss and all gradients of imported weights."""
    engine = engine_of(job)
    engine.import_weights(folder)
    given = {name: paddle.to_tensor(array) for name, array in np.load(folder / "in.npz").items()}
    targets = given.pop("targets")
    found: Arrays = {"logits": engine.model(*given.values()).numpy()}
    loss = engine.model(*given.values(), targets_bt=targets, scale=0.5)
    loss.backward()
    found["loss"] = loss.numpy()
    for name, parameter in engine.parameters.items():
        found[name] = turned(name, parameter.grad.numpy())
    engine.export_weights(folder / "again", "fp32")
    return found


def train(folder: Path, job: dict[str, Any]) -> Arrays:
    """Steps on one batch after the other, and ahead of each its gradient norm alone; the weights are left in ``end``."""
    engine = engine_of(job)
    engine.initialise()
    given = dict(np.load(folder / "in.npz"))
    results, alone = [], []
    for step in range(job["steps"]):
        batch = {name: array[step] for name, array in given.items()}
        alone.append(engine.gradient_norm(batch))
        result = engine.train_step(batch, job["rate"])
        results.append((result.loss, result.gradient_norm, result.supervised))
    engine.export_weights(folder / "end", "fp32")
    vitals = engine.vitals()
    sampled = {f"sample {name}": sample for name, sample in vitals.samples.items()}
    in_force = {f"setting {name}": np.array(value) for name, value in vitals.optimizer.items()}
    return {"results": np.array(results), "alone": np.array(alone)} | sampled | in_force


def lora(folder: Path, job: dict[str, Any]) -> Arrays:
    """Steps with adapters; their last ones again from a checkpoint of its own and of the other engine's; what is exported."""
    given = dict(np.load(folder / "in.npz"))
    tokens = paddle.to_tensor(given.pop("tokens"))

    def steps(engine: PaddleEngine, numbers: range) -> list[tuple[float, float]]:
        results = [engine.train_step({name: array[step] for name, array in given.items()}, job["rate"]) for step in numbers]
        return [(result.loss, result.gradient_norm) for result in results]

    def started(*overrides: str) -> PaddleEngine:
        engine = engine_of({**job, "overrides": [*job["overrides"], *overrides]})
        engine.import_weights(folder)
        return engine

    engine = started()
    curve = steps(engine, range(job["moves"]))
    state = engine.save(folder / "end")
    curve += steps(engine, last := range(job["moves"], job["steps"]))
    engine.export_weights(folder / "again", "fp32")
    (folder / "adapter").mkdir()
    engine.export_adapter(folder / "adapter")
    found: Arrays = {
        "curve": np.array(curve),
        "logits": engine.model(tokens).numpy(),
        "held": np.array([*engine.held_bytes().values()]),
    }
    for name, place, told in (("own", "end", state), ("other", "theirs", job["state"])):
        moved = started()
        moved.load(folder / place, told)
        found[name] = np.array(steps(moved, last))
    for name, override in {"recomputed": "memory.recompute=full", "compiled": "train.compile=true"}.items():
        found[name] = np.array(steps(started(override), range(3)))
    return found


def reload(folder: Path, job: dict[str, Any]) -> Arrays:
    """Two steps, and the same again from a snapshot of before them, in the same engine."""
    engine = engine_of(job)
    engine.initialise()
    batches = [{name: array[step] for name, array in np.load(folder / "in.npz").items()} for step in range(4)]
    for batch in batches[:2]:
        engine.train_step(batch, job["rate"])
    state = engine.save(folder / "end")
    found = {}
    for time in ("first", "again"):
        results = [engine.train_step(batch, job["rate"]) for batch in batches[2:]]
        found[time] = np.array([(result.loss, result.gradient_norm) for result in results])
        engine.load(folder / "end", state)
    return found


def amp(folder: Path, job: dict[str, Any]) -> Arrays:
    """Level O2 in fp16, but for the casts, which paddle leaves out on a CPU; how the loss scale goes, and what decorates."""
    asked: list[dict[str, Any]] = []
    honest = paddle.amp.decorate

    def decorate(models: Any, **options: Any) -> Any:
        asked.append(options)
        return honest(models, **options)

    with (
        patch.object(engines, "device_for", lambda _: "cpu"),
        patch.object(PaddleEngine, "_autocast", lambda _: nullcontext()),
        patch.object(paddle.amp, "decorate", decorate),
    ):
        found = train(folder, job)
        engine = engine_of(job)
        engine.initialise()
        before = {name: parameter.numpy() for name, parameter in engine.parameters.items()}
        engine.optimizer.scale.value = 1e30
        batch = {name: array[0] for name, array in np.load(folder / "in.npz").items()}
        result = engine.train_step(batch, job["rate"])
        kept = all(np.array_equal(before[name], parameter.numpy()) for name, parameter in engine.parameters.items())
        shared = [name for name, master in engine.parameters.items() if master is dict(engine.model.named_parameters())[name]]
    told = [str(result.skipped), str(kept), str(engine.optimizer.scale.value == 5e29), str(shared), str(asked[0]["level"])]
    return found | {"overflow": np.array([*told, str(asked[0]["dtype"])])}


def masters(folder: Path, job: dict[str, Any]) -> Arrays:
    """What is cast, and that nothing is lost to it: weights from FP32 to the model's type, gradients back."""
    stage = CausalLM(ModelShape.model_validate(job["shape"]))
    whole = {name: parameter.numpy() for name, parameter in stage.named_parameters()}
    with patch.object(paddle.amp, "decorate", lambda models, level, **options: amp_initialize(models=models, **options)):
        made = Masters([stage], "float16")  # paddle's own decorate does not cast on a CPU
    kept = all(np.array_equal(made.own[name].numpy(), array) for name, array in whole.items())
    types = {str(parameter.dtype) for name, parameter in made.model.items() if not name.endswith("norm.weight")}
    norms = {str(parameter.dtype) for name, parameter in made.model.items() if name.endswith("norm.weight")}
    name = "lm_head.weight"
    for _ in range(2):
        made.model[name].grad = paddle.full_like(made.model[name], 0.25)
        made.take_gradients()
    gradient = made.own[name].grad
    made.own[name].set_value(np.full(whole[name].shape, 1 + 2**-9, np.float32))
    made.give_weights()
    sums = [gradient.astype("float64").mean().item(), made.model[name].astype("float64").mean().item()]
    told = [str(kept), *types, *norms, str(gradient.dtype)]
    return {"told": np.array(told), "sums": np.array(sums)}


def observe(folder: Path, job: dict[str, Any]) -> Arrays:
    """The sums of the second of two steps, by numpy or as they are made on a GPU."""
    engine = engine_of(job)
    engine.initialise()
    first, second = ({name: array[step] for name, array in np.load(folder / "in.npz").items()} for step in range(2))
    engine.train_step(first, job["rate"])
    with nullcontext() if job["numpy"] else patch.object(statistics, "_here", lambda tensor: tensor):
        result, observed = engine.observed_step(second, job["rate"], histograms=True)
    found = {f"{kind} {name}": np.array(sums[:5]) for (kind, name), sums in observed.tensors.items()}
    found |= {f"spread {kind} {name}": sums.spread for (kind, name), sums in observed.tensors.items()}
    found |= {f"logit {name}": np.array(largest) for name, largest in observed.attention_logits.items()}
    return found | {"parts": np.array(sorted(result.seconds)), "held": np.array([*engine.held_bytes().values()])}


def profile(folder: Path, job: dict[str, Any]) -> Arrays:
    """A trace of two steps, after one that is not in it; how many parameters there are, and the losses."""
    engine = engine_of(job)
    engine.initialise()
    given = dict(np.load(folder / "in.npz"))
    losses = []
    for step in range(4):
        if step == 1:
            engine.start_profile()
        losses.append(engine.train_step({name: array[step] for name, array in given.items()}, job["rate"]).loss)
        if step == 2:
            engine.end_profile()(folder / "trace.json.gz")
    return {"parameters": np.array(len(engine.parameters)), "losses": np.array(losses), "copy": np.array(engine.copy_peak())}


def generate(folder: Path, job: dict[str, Any]) -> Arrays:
    engine = engine_of(job)
    engine.initialise()
    drawn = {
        name: np.array([*engine.generate([1, 2, 3], Sampling(**sampling), None)]) for name, sampling in job["samplings"].items()
    }
    # The same greedily, without a cache.
    tokens = [1, 2, 3]
    for _ in range(job["samplings"]["greedy"]["max_tokens"]):
        tokens.append(int(engine.model(paddle.to_tensor([tokens]))[0, -1].argmax()))
    return drawn | {"no cache": np.array(tokens[3:])}


def dropout(folder: Path, job: dict[str, Any]) -> Arrays:
    made = Dropout(0.3, job["seed"])
    keys = made.keys(paddle.to_tensor(job["samples"], dtype="int64"), 7, 3)
    return {"keep": np.stack([made.keep(keys, half, 18).numpy() for half in (0, 1)])}


class Source:
    """Step n holds n; step 5 cannot be read."""

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        if step == 5:
            raise UserError("step 5 cannot be read")
        return {"inputs": np.full((2, 3), step)}


def load(folder: Path, job: dict[str, Any]) -> Arrays:
    """Batches in the order of the steps, and what is raised for one that cannot be read."""
    engine = engine_of(job)
    found = {}
    for workers in (0, 2):
        batches = engine.loader(Source(), range(2, 8), workers)
        seen = [int(np.asarray(next(batches)["inputs"])[1, 2]) for _ in range(3)]
        try:
            next(batches)
        except UserError as error:
            found[f"{workers} workers"] = np.array([*map(str, seen), str(error)])
    return found


def device(folder: Path, job: dict[str, Any]) -> Arrays:
    """Which of a machine's GPUs the fourth of its processes takes, as far as can be told without any."""
    recipe = parse({"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}}, ["train.engine=paddle"])
    assert gpus() is None
    facts = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=int(84.9e9), multi_processor_count=132)
    with (
        patch.object(paddle.device, "is_compiled_with_cuda", lambda: True),
        patch.object(paddle.device.cuda, "device_count", lambda: 8),
        patch.object(paddle.device.cuda, "get_device_properties", lambda _: facts),
        patch.object(paddle, "set_device", lambda name: f"Place({name})"),
        patch.dict(os.environ, {"LOCAL_RANK": "3"}),
    ):
        found = gpus()
        assert found is not None
        return {"device": np.array(device_for(recipe)), "gpus": np.array([*map(str, dataclasses.astuple(found))])}


def main(root: Path) -> None:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        job = json.loads((folder / "job.json").read_text())
        for name in ("again", "end"):
            (folder / name).mkdir()
        try:
            found = globals()[job["do"]](folder, job)
            np.savez(folder / "out.npz", **found)
        except UserError as error:
            (folder / "error.txt").write_text(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

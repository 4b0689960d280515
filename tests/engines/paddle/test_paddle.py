"""The paddle engine beside the torch engine and transformers: all jobs in one paddle process, all comparisons in this one."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from danlu.engines.torch.dropout import Dropout, Keys
from danlu.engines.torch.engine import TorchEngine
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.recipe import parse
from danlu.watch import profile as profiles
from danlu.watch import trace

WORKER = Path(__file__).with_name("worker.py")
BASE: dict[str, Any] = {
    "vocab_size": 96,
    "layers": 3,
    "hidden_size": 48,
    "ffn_size": 80,
    "heads": 6,
    "kv_heads": 2,
    "max_sequence_length": 128,
}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_sequence_length": 32, "low_frequency_factor": 1.5}
YARN = {"kind": "yarn", "factor": 4.0, "original_max_sequence_length": 32, "attention_factor": 1.25}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied, all biases, no groups": {
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tied_embeddings": True,
        "kv_heads": None,
    },
    "llama wide heads, llama3 scaling": {"head_size": 16, "rope_scaling": LLAMA3, "rope_theta": 500_000.0},
    "llama yarn": {"rope_scaling": YARN, "kv_heads": 1},
    "mistral window": {"family": "mistral", "hidden_size": 50, "head_size": 8, "sliding_window": 7, "tied_embeddings": True},
    "qwen2 window after one layer": {"family": "qwen2", "qkv_bias": True, "sliding_window": 7, "full_attention_layers": 1},
    "ernie": {"family": "ernie4_5", "tied_embeddings": True, "head_size": 16, "rope_theta": 500_000.0},
    "ernie biases": {"family": "ernie4_5", "qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "qwen3 wide heads": {"family": "qwen3", "qk_norm": True, "head_size": 16, "rope_theta": 1e6},
}
MASKED = ("llama", "mistral window", "qwen2 window after one layer")
LENGTHS = (13, 22, 13)
UP = "model.layers.1.mlp.up_proj.weight"
TRAINED = {
    "plain": [],
    "accumulated": ["train.global_batch=4", "memory.micro_batch=1"],
    "recomputed": ["memory.recompute=full"],
    "dropped": ["train.dropout=0.2"],
    "recomputed, dropped": ["memory.recompute=full", "memory.recompute_every=2", "train.dropout=0.2"],
    "compiled": ["train.compile=true"],
    "compiled, dropped": ["train.compile=true", "train.dropout=0.2"],
    "clipped": ["train.optimizer.gradient_clipping=0.05"],
    "maximal update": ["model.mup={base_hidden_size: 12}"],
}
OBSERVED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "accumulated": ({}, TRAINED["accumulated"]),
    "recomputed, tied, normed": (
        {"family": "qwen3", "qk_norm": True, "tied_embeddings": True},
        [*TRAINED["accumulated"], *TRAINED["recomputed"]],
    ),
}
LORA = ["model={hugging_face: x}", "data.tokenizer={path: x}", "train.lora={rank: 4, alpha: 6}"]
ADAPTED = {"family": "qwen2", "layers": 2, "qkv_bias": True, "tied_embeddings": True}
LORA_STEPS, LORA_RATE = 30, 1e-2
SAMPLINGS = {
    "greedy": {"max_tokens": 30, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0},
    "drawn": {"max_tokens": 30, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3},
    "again": {"max_tokens": 30, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3},
    "cold": {"max_tokens": 30, "temperature": 1e-9, "top_k": 0, "top_p": 1.0, "seed": 3},
    "one": {"max_tokens": 30, "temperature": 1.0, "top_k": 1, "top_p": 1.0, "seed": 3},
}


class Outcome:
    """What a job left, and what it had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = dict(np.load(folder / "out.npz")) if (folder / "out.npz").is_file() else {}
        self.error = (folder / "error.txt").read_text() if (folder / "error.txt").is_file() else None


def shape_of(**fields: Any) -> ModelShape:
    return ModelShape(**BASE | fields)


def engine_of(shape: ModelShape, *overrides: str) -> TorchEngine:
    tree = {"name": "t", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x.txt"}]}}
    return TorchEngine(parse(tree, ["train.device=cpu", *overrides]), shape)


def inputs(masked: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    made = {"tokens": random.integers(0, 96, (2, 48)), "targets": random.integers(0, 96, (2, 48))}
    made["targets"][0, :9] = -100
    if masked:
        made["positions"] = np.broadcast_to(np.concatenate([np.arange(length) for length in LENGTHS]), (2, 48))
        made["documents"] = np.broadcast_to(np.repeat(np.arange(3, dtype=np.int32), LENGTHS), (2, 48))
    return made


def batches(steps: int, micro_batches: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(6)
    size = (steps, micro_batches, 4 // micro_batches, 16)
    made = {"inputs": random.integers(0, 96, size), "targets": random.integers(0, 96, size)}
    made["targets"][random.random(size) < 0.2] = -100
    made["samples"] = np.arange(4 * steps).reshape(size[:3])
    return made


def randomised(shape: ModelShape) -> TorchEngine:
    """Every tensor at random, norms and biases too, so that no two of them can be mistaken for one another."""
    engine, random = engine_of(shape), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in engine.parameters.items():
            drawn = torch.randn(tensor.shape, generator=random)
            tensor.copy_(1 + 0.3 * drawn if name.endswith("norm.weight") else 0.12 * drawn)
    return engine


def adapted(folder: Path) -> TorchEngine:
    """A model with adapters, and biases beside them."""
    engine = engine_of(shape_of(**ADAPTED), *LORA)
    engine.import_weights(folder)
    return engine


def lora_job(job: Callable[..., Path]) -> None:
    """From a model in a folder; in the middle stands the other engine's checkpoint."""
    shape = shape_of(**ADAPTED)
    given = batches(LORA_STEPS, 2)
    folder = job("lora", shape, given | {"tokens": inputs(masked=False)["tokens"]})
    randomised(shape).export_weights(folder, "fp32")
    engine = adapted(folder)
    for step in range(LORA_STEPS // 2):
        engine.train_step({key: torch.tensor(array[step]) for key, array in given.items()}, LORA_RATE)
    (folder / "theirs").mkdir()
    state = engine.save(folder / "theirs")
    fields = {"do": "lora", "overrides": LORA, "steps": LORA_STEPS, "moves": LORA_STEPS // 2, "rate": LORA_RATE, "state": state}
    (folder / "job.json").write_text(json.dumps({"shape": shape.model_dump(mode="json"), **fields}))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Outcome of a job by its name."""
    root, places = tmp_path_factory.mktemp("paddle"), {}

    def job(name: str, shape: ModelShape, arrays: dict[str, np.ndarray] | None = None, **fields: Any) -> Path:
        places[name] = folder = root / f"{len(places):03d}"
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps({"shape": shape.model_dump(mode="json"), **fields}))
        np.savez(folder / "in.npz", **(arrays or {}))
        return folder

    for name, fields in FAMILIES.items():
        shape = shape_of(**fields)
        folder = job(f"logits {name}", shape, inputs(masked=False), do="logits")
        randomised(shape).export_weights(folder, "fp32")
        if name in MASKED:
            folder = job(f"masked {name}", shape, inputs(masked=True), do="logits")
            randomised(shape).export_weights(folder, "bf16")
    for name, overrides in TRAINED.items():
        given = batches(6, 4 if name == "accumulated" else 1)
        job(f"train {name}", shape_of(layers=2), given, do="train", overrides=overrides, steps=6, rate=1e-2)
    job("generate", shape_of(family="mistral", sliding_window=7), do="generate", samplings=SAMPLINGS)
    for name, (fields, overrides) in OBSERVED.items():
        way = {"overrides": overrides, "numpy": name == "accumulated"}
        job(f"observe {name}", shape_of(layers=2, **fields), batches(2, 4), do="observe", rate=1e-2, **way)
    level = ["train.precision=fp16", "train.amp_level=O2"]
    job("amp", shape_of(layers=2), batches(6, 4), do="amp", overrides=[*TRAINED["accumulated"], *level], steps=6, rate=1e-2)
    job("masters", shape_of(layers=1, qkv_bias=True), do="masters")
    job("profile", shape_of(layers=2, qkv_bias=True), batches(4, 2), do="profile", overrides=TRAINED["accumulated"], rate=1e-2)
    lora_job(job)
    job("reload", shape_of(layers=2), batches(4), do="reload", rate=1e-2)
    job("load", shape_of(), do="load")
    job("device", shape_of(), do="device")
    job("dropout", shape_of(), do="dropout", seed=2**62 + 1, samples=[0, 5, 2**40])
    job("bf16", shape_of(), do="train", overrides=["train.precision=bf16"])
    good = randomised(shape_of()).parameters
    for name, tensors in {
        "missing": {key: value for key, value in good.items() if key != UP},
        "misshapen": good | {UP: torch.zeros(48, 80)},
        "quantized": good | {UP: good[UP].to(torch.int8)},
        "infinite": good | {UP: torch.full_like(good[UP], torch.inf)},
    }.items():
        save_file(dict(tensors), job(name, shape_of(), do="logits") / "model.safetensors")
    folder = job("cut off", shape_of(), do="logits")
    save_file(dict(good), folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-5])
    job("absent", shape_of(), do="logits")

    command = [sys.executable, str(WORKER), str(root)]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return lambda name: Outcome(places[name])


def close(found: np.ndarray, wanted: torch.Tensor, within: float) -> None:
    """Within a share of the largest entry."""
    expected = wanted.detach().numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= within * np.abs(expected).max()


@pytest.mark.parametrize("name", [f"logits {name}" for name in FAMILIES] + [f"masked {name}" for name in MASKED])
def test_logits_loss_and_gradients_are_those_of_torch(name: str, outcomes: Callable[[str], Outcome]) -> None:
    outcome, family = outcomes(name), name.split(" ", 1)[1]
    engine = engine_of(shape_of(**FAMILIES[family]))
    engine.import_weights(outcome.folder)
    given = {key: torch.tensor(array) for key, array in inputs(name.startswith("masked")).items()}
    targets = given.pop("targets")
    loss = engine.model(*given.values(), targets_bt=targets, scale=0.5)
    loss.sum().backward()
    logits = engine.model(*given.values())
    assert logits.std() > 0.3
    np.testing.assert_allclose(outcome.out["logits"], logits.detach().numpy(), rtol=0, atol=1e-5)
    assert outcome.out["loss"].sum() == pytest.approx(loss.item(), rel=1e-6)
    for key, parameter in engine.own.items():
        close(outcome.out[key], parameter.grad, 1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_opens_what_paddle_exports(name: str, outcomes: Callable[[str], Outcome]) -> None:
    outcome, shape = outcomes(f"logits {name}"), shape_of(**FAMILIES[name])
    again = outcome.folder / "again"
    (again / "config.json").write_text(json.dumps(to_hugging_face(shape, bos_token_id=None, eos_token_id=None)))
    attention = "eager" if FAMILIES[name].get("kv_heads") == 1 else "sdpa"
    theirs, info = AutoModelForCausalLM.from_pretrained(again, attn_implementation=attention, output_loading_info=True)
    assert not any(info.values()), info
    expected = theirs(input_ids=torch.tensor(inputs(masked=False)["tokens"])).logits
    np.testing.assert_allclose(outcome.out["logits"], expected.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_steps_are_those_of_torch(name: str, outcomes: Callable[[str], Outcome]) -> None:
    """From the same initial weights, which each engine draws for itself."""
    outcome = outcomes(f"train {name}")
    overrides = [override for override in TRAINED[name] if "compile" not in override]
    engine = engine_of(shape_of(layers=2), *overrides)
    engine.initialise()
    given = {key: torch.tensor(array) for key, array in batches(6, 4 if name == "accumulated" else 1).items()}
    results = [engine.train_step({key: array[step] for key, array in given.items()}, 1e-2) for step in range(6)]
    expected = np.array([(result.loss, result.gradient_norm, result.supervised) for result in results])
    np.testing.assert_allclose(outcome.out["results"], expected, rtol=1e-4)
    np.testing.assert_array_equal(outcome.out["alone"], outcome.out["results"][:, 1], "of a step that is not made")
    end = load_file(outcome.folder / "end" / "model.safetensors")
    for key, tensor in engine.own.items():
        close(end[key].numpy(), tensor, 1e-3)


def test_adapters_train_as_with_torch(outcomes: Callable[[str], Outcome], tmp_path: Path) -> None:
    """30 steps, the last half of them from either engine's checkpoint; and the base stays."""
    outcome = outcomes("lora")
    engine = adapted(outcome.folder)
    given = {key: torch.tensor(array) for key, array in batches(LORA_STEPS, 2).items()}
    results = [engine.train_step({key: array[step] for key, array in given.items()}, LORA_RATE) for step in range(LORA_STEPS)]
    expected = np.array([(result.loss, result.gradient_norm) for result in results])
    np.testing.assert_allclose(outcome.out["curve"][:, 0], expected[:, 0], rtol=1e-4)
    np.testing.assert_allclose(outcome.out["curve"][:, 1], expected[:, 1], rtol=1e-3)
    half = LORA_STEPS // 2
    assert np.array_equal(outcome.out["own"], outcome.out["curve"][half:])
    np.testing.assert_allclose(outcome.out["other"], expected[half:], rtol=1e-3)
    assert np.array_equal(outcome.out["recomputed"], outcome.out["curve"][:3])
    np.testing.assert_allclose(outcome.out["compiled"], outcome.out["curve"][:3], rtol=1e-4)
    entries = sum(parameter.numel() for parameter in engine.trained.values())
    assert outcome.out["held"].tolist() == [engine.held_bytes()["parameters"], 2 * 4 * entries]
    moved = adapted(outcome.folder)
    moved.load(outcome.folder / "end", {"scaler": {}})
    again = [
        moved.train_step({key: array[step] for key, array in given.items()}, LORA_RATE).loss for step in range(half, LORA_STEPS)
    ]
    np.testing.assert_allclose(again, outcome.out["curve"][half:, 0], rtol=1e-4)
    engine.export_adapter(tmp_path)
    theirs, own = (load_file(place / "adapter_model.safetensors") for place in (outcome.folder / "adapter", tmp_path))
    assert theirs.keys() == own.keys() and len(own) == 2 * 2 * 7
    for name, tensor in own.items():
        close(theirs[name].numpy(), tensor, 1e-3)
    configs = [json.loads((place / "adapter_config.json").read_text()) for place in (outcome.folder / "adapter", tmp_path)]
    assert configs[0] == configs[1]
    base, end = load_file(outcome.folder / "model.safetensors"), load_file(outcome.folder / "end" / "model.safetensors")
    assert all(torch.equal(end[name], tensor) for name, tensor in base.items())


def test_peft_computes_the_same_with_an_adapter_of_paddle(outcomes: Callable[[str], Outcome]) -> None:
    """Beside the base, and merged into it."""
    from peft import PeftModel

    outcome = outcomes("lora")
    config = to_hugging_face(shape_of(**ADAPTED), bos_token_id=None, eos_token_id=None)
    for folder in (outcome.folder, outcome.folder / "again"):
        (folder / "config.json").write_text(json.dumps(config))
    tokens = torch.tensor(inputs(masked=False)["tokens"])
    base = AutoModelForCausalLM.from_pretrained(outcome.folder, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(outcome.folder / "again", dtype=torch.float32)
    with torch.no_grad():
        alone = base(tokens).logits
        beside = PeftModel.from_pretrained(base, outcome.folder / "adapter").eval()(tokens).logits
        close(outcome.out["logits"], beside, 1e-5)
        close(outcome.out["logits"], merged(tokens).logits, 1e-5)
    assert (alone - beside).abs().max() > 0.1


def test_an_engine_goes_back_to_a_checkpoint_and_repeats_the_bits(outcomes: Callable[[str], Outcome]) -> None:
    out = outcomes("reload").out
    assert np.array_equal(out["again"], out["first"]) and not np.array_equal(out["first"][0], out["first"][1])


def test_vitals_are_the_optimizer_s_settings_and_weights_of_every_parameter(outcomes: Callable[[str], Outcome]) -> None:
    outcome = outcomes("train plain")
    engine = engine_of(shape_of(layers=2))
    engine.initialise()
    for step in range(6):
        engine.train_step({key: torch.tensor(array[step]) for key, array in batches(6).items()}, 1e-2)
    expected = {f"setting {name}": value for name, value in engine.vitals().optimizer.items()}
    assert {name: float(value) for name, value in outcome.out.items() if name in expected} == pytest.approx(expected)
    end = load_file(outcome.folder / "end" / "model.safetensors")
    for name, weights in end.items():
        assert np.isin(outcome.out[f"sample {name}"], weights.numpy()).all()
        assert outcome.out[f"sample {name}"].size == min(weights.numel(), 256) or weights.numel() > 256


def test_techniques_train_the_same_model(outcomes: Callable[[str], Outcome]) -> None:
    """Recomputation gives the same bits, a compiled graph the same loss within 1e-4, and dropout another one."""
    plain = outcomes("train plain").out["results"]
    assert np.array_equal(outcomes("train recomputed").out["results"], plain)
    dropped = outcomes("train dropped").out["results"]
    assert np.array_equal(outcomes("train recomputed, dropped").out["results"], dropped)
    np.testing.assert_allclose(outcomes("train compiled").out["results"], plain, rtol=1e-4)
    np.testing.assert_allclose(outcomes("train compiled, dropped").out["results"], dropped, rtol=1e-4)
    assert np.abs(dropped - plain).max() > 1e-2


@pytest.mark.parametrize("name", OBSERVED)
def test_statistics_are_those_of_torch(name: str, outcomes: Callable[[str], Outcome]) -> None:
    out, (fields, overrides) = outcomes(f"observe {name}").out, OBSERVED[name]
    engine = engine_of(shape_of(layers=2, **fields), *overrides)
    engine.initialise()
    first, second = ({key: torch.tensor(array[step]) for key, array in batches(2, 4).items()} for step in range(2))
    engine.train_step(first, 1e-2)
    result, observed = engine.observed_step(second, 1e-2, histograms=True)
    assert len(observed.tensors) == len([key for key in out if key.startswith("spread")])
    for (kind, tensor), sums in observed.tensors.items():
        entries, _, squares, largest, zeros = out[f"{kind} {tensor}"]
        # Where a gradient is to be zero, paddle's may be 1e-29: no zero, but among them in the histogram of the squares.
        assert entries == sums.entries and 0.9 * sums.zeros - 2 <= zeros <= sums.zeros + 2, (kind, tensor)
        assert out[f"spread {kind} {tensor}"][:, 0].sum() == pytest.approx(sums.spread[:, 0].sum(), abs=2)
        np.testing.assert_allclose([squares, largest], [sums.squares, sums.largest], rtol=2e-3)
        # The total of numbers of both signs, to what rounding leaves of it.
        assert out[f"{kind} {tensor}"][1] == pytest.approx(sums.total, abs=1e-3 * (sums.squares * sums.entries) ** 0.5)
        apart = out[f"spread {kind} {tensor}"] - sums.spread
        assert abs(apart[:, 0].sum()) + np.abs(apart[:, 1:]).sum() <= 0.01 * sums.entries  # a zero's sign is nobody's
    for attention, value in observed.attention_logits.items():
        assert out[f"logit {attention}"] == pytest.approx(value, rel=1e-4)
    assert out["parts"].tolist() == sorted(result.seconds)
    assert out["held"].tolist()[0] == engine.held_bytes()["parameters"]


def test_masters_are_updated_and_the_loss_is_scaled(outcomes: Callable[[str], Outcome]) -> None:
    """Whose casts cannot be seen on a CPU: all else is that of FP32, and an overflow leaves everything as it was."""
    out = outcomes("amp").out
    np.testing.assert_allclose(out["results"], outcomes("train accumulated").out["results"], rtol=1e-5)
    told, sums = (outcomes("masters").out[name].tolist() for name in ("told", "sums"))
    assert told == ["True", "paddle.float16", "paddle.float32", "paddle.float32"] and sums == [0.5, 1 + 2**-9]
    assert out["overflow"].tolist() == ["loss scale overflow", "True", "True", "[]", "O2", "float16"]


def test_a_profile_tells_operators_with_their_shapes_and_work(outcomes: Callable[[str], Outcome]) -> None:
    outcome = outcomes("profile")
    found = trace.read(outcome.folder / "trace.json.gz")
    calls = {name: sum(one.calls for one in found.operators if one.name == name) for name in ("adamw", "matmul", "swiglu")}
    assert calls == {"adamw": 2 * int(outcome.out["parameters"]), "matmul": 4 * (2 * 9 + 3), "swiglu": 4 * 2}
    # Two steps of two micro-batches of 2 x 16 tokens: the products of two layers and the head, forward and twice backward.
    hidden, ffn, key_value, vocabulary, tokens = 48, 80, 16, 96, 32
    layer = 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * ffn + 2 * 16 * hidden
    assert sum(one.flops for one in found.operators) == 4 * 3 * 2 * tokens * (2 * layer + hidden * vocabulary)
    shapes = {one.shapes for one in found.operators if one.name == "matmul_grad"}
    assert "[2, 16, 80] [2, 16, 48] [48, 80]" in shapes
    update = next(one for one in found.operators if one.name == "adamw" and one.shapes == "[96, 48]")
    assert (update.calls, update.bytes) == (2, 2 * 7 * 96 * 48 * 4)
    swiglu = next(one for one in found.operators if one.name == "swiglu")
    assert swiglu.bytes >= 8 * 2 * 4 * tokens * ffn
    assert max(held for _, held in found.memory) > 2 * 4 * 96 * 48
    told = {"device": "cpu", "matmul_flops_per_second": 1e10, "copy_bytes_per_second": float(outcome.out["copy"])}
    seconds = sum(one.seconds for one in found.operators)
    profiled = profiles.profile(0, told | {"steps": [{"step": 2, "seconds": seconds, "parts": {}}]}, found, "")
    assert profiled.compute > 0 < profiled.memory and profiled.compute + profiled.memory + profiled.idle == pytest.approx(seconds)
    events = json.loads(gzip.decompress((outcome.folder / "trace.json.gz").read_bytes()))["traceEvents"]
    assert all(isinstance(event["tid"], int) and "[" not in event["name"].replace("[memory]", "") for event in events)
    plain = engine_of(shape_of(layers=2, qkv_bias=True), *TRAINED["accumulated"])
    plain.initialise()
    given = {key: torch.tensor(array) for key, array in batches(4, 2).items()}
    losses = [plain.train_step({key: array[step] for key, array in given.items()}, 1e-2).loss for step in range(4)]
    np.testing.assert_allclose(outcome.out["losses"], losses, rtol=1e-5)


def test_dropout_masks_are_those_of_torch(outcomes: Callable[[str], Outcome]) -> None:
    keys = Keys(2**62 + 1)(torch.tensor([0, 5, 2**40]), 7, 3)
    expected = np.stack([Dropout(0.3).keep(keys, first, 18).numpy() for first in (0, 20)])  # of either half
    assert 0.6 < expected.mean() < 0.8
    assert np.array_equal(outcomes("dropout").out["keep"], expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_errors_as_they_are(workers: int, outcomes: Callable[[str], Outcome]) -> None:
    assert outcomes("load").out[f"{workers} workers"].tolist() == ["2", "3", "4", "step 5 cannot be read"]


def test_continuations(outcomes: Callable[[str], Outcome]) -> None:
    """Greedy ones are those without a cache, a seed repeats, and a tiny temperature or a single candidate is greedy."""
    out = outcomes("generate").out
    assert out["greedy"].tolist() == out["no cache"].tolist() == out["cold"].tolist() == out["one"].tolist()
    assert out["drawn"].tolist() == out["again"].tolist() != out["greedy"].tolist()
    assert len(set(out["greedy"].tolist())) > 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bf16", r"train.precision: bf16 has no matrix products in paddle on a CPU"),
        ("missing", f"1 missing ({UP})"),
        ("misshapen", f"{UP} has shape (48, 80), the model needs (80, 48)"),
        ("quantized", f"{UP} is int8, so quantized"),
        ("infinite", f"{UP} holds NaN or infinity"),
        ("cut off", "not a complete safetensors file"),
        ("absent", "no model.safetensors and no model.safetensors.index.json"),
    ],
)
def test_what_cannot_be_done_is_named(name: str, words: str, outcomes: Callable[[str], Outcome]) -> None:
    error = outcomes(name).error
    assert error is not None and words in error and "\n" not in error


def test_each_process_of_a_machine_takes_a_gpu_of_its_own(outcomes: Callable[[str], Outcome]) -> None:
    assert str(outcomes("device").out["device"]) == "gpu:3"
    assert outcomes("device").out["gpus"].tolist() == ["8", "NVIDIA H100 80GB HBM3", str(int(84.9e9)), "132"]

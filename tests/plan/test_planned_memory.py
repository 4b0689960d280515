"""Memory: activations against what torch keeps, published runs, and what every technique must do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from danlu import recipe as recipes
from danlu.engines.torch import recompute
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.trial import meter_step
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape
from danlu.plan.activations import layer_bytes
from danlu.plan.hardware import load
from danlu.plan.job import Dimensions, Job, Lora
from danlu.plan.memory import memory
from danlu.plan.parameters import adapter_parameters

A100, H100 = load("a100-40gb"), load("h100-80gb")
LLAMA_2_7B = Dimensions(32, 4096, 11008, 32, 32, 32000, 128)


def kept_by_torch(layers: int, kv_heads: int, precision: str, mode: str) -> int:
    """Bytes of the storages that a forward pass keeps for the backward pass, parameters left out."""
    shape = small(layers, kv_heads)
    model = CausalLM(shape)
    model.model.set_frequencies(shape)
    recompute.apply(model, mode, 1)
    parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        model.model(torch.zeros((2, 64), dtype=torch.long))
    return sum(storage.nbytes() for storage in kept.values())


def small(layers: int, kv_heads: int) -> ModelShape:
    return ModelShape(vocab_size=512, layers=layers, hidden_size=128, ffn_size=352, heads=4, kv_heads=kv_heads)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["none", "full"])
def test_activations_are_what_torch_keeps(kv_heads: int, precision: str, mode: str) -> None:
    one = Dimensions.from_shape(small(3, kv_heads))
    job = Job(one, sequence=64, micro_batch=2, global_batch=2, precision=precision, recompute=mode)
    measured = kept_by_torch(3, kv_heads, precision, mode) - kept_by_torch(2, kv_heads, precision, mode)
    if precision == "bf16" and mode == "none":  # autocast's copies of the weights, which the planner counts apart
        measured -= 2 * (one.attention_parameters + one.mlp_parameters)
    assert layer_bytes(job) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("lora", "precision", "memory_section"),
    [
        ({}, "bf16", {}),
        ({"targets": ["q_proj", "v_proj"]}, "fp32", {"micro_batch": 1}),
        ({"targets": ["*.mlp.*"], "dora": True}, "fp32", {"recompute": "full"}),
        ({"dropout": 0.1, "dora": True}, "bf16", {"recompute": "selective"}),
        ({"dropout": 0.1, "dora": True, "base": "int8"}, "fp32", {}),
        ({"base": "int8"}, "bf16", {}),
    ],
)
def test_adapters_and_masks_are_what_the_meter_sees(
    tmp_path: Path, lora: dict[str, Any], precision: str, memory_section: dict[str, Any]
) -> None:
    shape = small(6, 2).model_copy(update={"tied_embeddings": True})
    (tmp_path / "config.json").write_text(
        json.dumps(to_hugging_face(shape, bos_token_id=None, eos_token_id=None)), encoding="utf-8"
    )
    recipe = recipes.parse(
        {
            "name": "adapters",
            "model": {"hugging_face": str(tmp_path)},
            "data": {"sources": [{"path": "-"}], "tokenizer": {"path": "-"}, "sequence_length": 128},
            "train": {"global_batch": 4, "precision": precision, "device": "cpu", "lora": {"rank": 4, **lora}},
            "memory": memory_section,
        }
    )
    counted = meter_step(recipe)
    planned = memory(Job.from_recipe(recipe, shape), load("cpu")).stages[0]
    assert planned.weights == pytest.approx(counted["parameters"], rel=1e-12)
    assert planned.optimizer == pytest.approx(counted["optimizer"], rel=0.01)  # which has the counts of steps as well
    assert planned.estimate - planned.overhead == pytest.approx(counted["peak"], rel=0.05)


@pytest.mark.parametrize("micro_batch, gigabytes", [(1, 21.30), (2, 29.07)])
def test_published_lora_runs(micro_batch: int, gigabytes: float) -> None:
    """litgpt's resource tables: LoRA of Llama 2 7B on an A100 40 GB, peak allocated; micro-batch 4 runs out of memory."""
    found = memory(lora(micro_batch), A100)
    assert found.peak / 1e9 == pytest.approx(gigabytes, rel=0.05)
    assert found.peak < found.bound and found.fits(A100)


def test_published_lora_run_out_of_memory() -> None:
    assert memory(lora(4), A100).verdict(A100) == "no"


def lora(micro_batch: int) -> Job:
    adapters = Lora(8, (("q_proj", "v_proj"),) * 32)
    assert 32 * adapter_parameters(Job(LLAMA_2_7B, 1304, 1, 1, lora=adapters), adapters.kinds[0]) == 4_194_304
    return Job(LLAMA_2_7B, 1304, micro_batch, 128, pure=True, lora=adapters, engine_name="litgpt").check()


def test_quantised_base_is_a_quarter() -> None:
    half = memory(lora(1), A100).stages[0].weights
    four = lora(1).with_(lora=Lora(8, (("q_proj", "v_proj"),) * 32, base_bits=4))
    table = 2 * LLAMA_2_7B.table  # the embedding stays in 16 bit
    assert (memory(four, A100).stages[0].weights - table) / (half - table) == pytest.approx(0.25, rel=0.01)


def job(**changes: object) -> Job:
    return Job(LLAMA_2_7B, 4096, 1, 64).with_(**changes).check()


@pytest.mark.parametrize(
    "change",
    [
        {"recompute": "selective"},
        {"recompute": "full"},
        {"data": 8, "zero_stage": 1},
        {"data": 8, "zero_stage": 3},
        {"tensor": 8},
        {"tensor": 8, "sequence_parallel": True},
        {"pipeline": 4},
        {"offload": "optimizer-host"},
        {"micro_batch": 1, "sequence": 2048},
    ],
)
def test_every_technique_saves(change: dict[str, object]) -> None:
    assert memory(job(**change), H100).peak < memory(job(), H100).peak


def test_first_stage_keeps_most_activations() -> None:
    stages = memory(job(pipeline=4), H100).stages
    held = [stage.activations for stage in stages]
    assert held == sorted(held, reverse=True) and held[0] > 3 * held[-1]


def test_large_vocabulary_moves_the_peak_to_the_last_stage() -> None:
    one = Dimensions(4, 512, 1376, 8, 8, 262144, 64)
    stages = memory(Job(one, 4096, 4, 8, pipeline=2, engine_name="torchtitan", stage_layers=(2, 2)), H100).stages
    assert stages[1].estimate > 2 * stages[0].estimate


def test_bound_covers_every_part() -> None:
    for stage in memory(job(pipeline=2, tensor=2, data=2, zero_stage=2, recompute="full"), H100).stages:
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.communication, stage.overhead)
        assert all(part >= 0 for part in parts) and stage.bound > stage.estimate > sum(parts[:3])

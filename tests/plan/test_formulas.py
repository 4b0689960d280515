"""Published closed forms, exact: activation paper (arXiv 2205.05198), ZeRO (1910.02054), Megatron-LM, SC21 (2104.04473)."""

from __future__ import annotations

import pytest

from danlu.plan.activations import layer_bytes
from danlu.plan.hardware import load
from danlu.plan.job import Dimensions, Job
from danlu.plan.memory import in_flight, memory
from danlu.plan.parameters import states, weight_parameters

# Table 3 of the activation paper: layers, hidden, heads, micro-batch, pipeline, virtual stages; tensor 8, sequence 2048.
MODELS = {
    "22b": (48, 6144, 64, 4, 1, 1),
    "175b": (96, 12288, 96, 1, 8, 3),
    "530b": (105, 20480, 128, 1, 35, 3),
    "1t": (128, 25600, 160, 1, 64, 1),
}
TECHNIQUES = {
    "none": (1, False, "none"),
    "tp": (8, False, "none"),
    "tp_sp": (8, True, "none"),
    "tp_selective": (8, False, "selective"),
    "tp_sp_selective": (8, True, "selective"),
    "full": (8, False, "full"),
}
# Bytes a layer, table 2 of the paper, evaluated for the four models.
LAYER_BYTES = {
    "22b": (7079985152, 1325400064, 884998144, 654311424, 213909504, 100663296),
    "175b": (2868903936, 578813952, 358612992, 327155712, 106954752, 50331648),
    "530b": (4110417920, 880803840, 513802240, 545259520, 178257920, 83886080),
    "1t": (5138022400, 1101004800, 642252800, 681574400, 222822400, 104857600),
}
# Figure 1: GiB on the first stage, tensor parallel alone, and with sequence parallelism and selective recompute.
FIGURE_1 = {"22b": (59.25, 9.5625), "175b": (66.84375, 12.3515625), "530b": (114.0234375, 23.076171875), "1t": (131.25, 26.5625)}
# Figure 7: percent of tensor parallel alone.
FIGURE_7 = {
    "22b": (100, 66.84, 49.42, 16.18, 7.64),
    "175b": (100, 62.04, 56.53, 18.49, 8.71),
    "530b": (100, 58.31, 62.04, 20.27, 9.42),
    "1t": (100, 58.31, 62.04, 20.27, 9.42),
}


def gpt(model: str, technique: str = "tp") -> Job:
    layers, hidden, heads, micro_batch, pipeline, virtual = MODELS[model]
    tensor, sequence_parallel, recompute = TECHNIQUES[technique]
    return Job(
        Dimensions(layers, hidden, 4 * hidden, heads, heads, 51200, hidden // heads, True, gated_mlp=False, positions=2048),
        sequence=2048,
        micro_batch=micro_batch,
        global_batch=micro_batch * 8 * pipeline,
        tensor=tensor,
        pipeline=pipeline,
        virtual_stages=virtual,
        schedule="interleaved",
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        precision="fp16",
        engine_name="megatron",
    ).check()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number, technique", list(enumerate(TECHNIQUES)))
def test_activations_of_a_layer(model: str, number: int, technique: str) -> None:
    assert layer_bytes(gpt(model, technique)) == pytest.approx(LAYER_BYTES[model][number], abs=1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number, technique", [(0, "tp"), (1, "tp_sp_selective")])
def test_activations_of_the_first_stage(model: str, number: int, technique: str) -> None:
    job = gpt(model, technique)
    held = sum(many * layers for many, layers in zip(in_flight(job, 0), job.stages[0], strict=True))
    assert held * layer_bytes(job) / 2**30 == pytest.approx(FIGURE_1[model][number], rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number, technique", list(enumerate(list(TECHNIQUES)[1:])))
def test_share_of_tensor_parallel_alone(model: str, number: int, technique: str) -> None:
    share = 100 * layer_bytes(gpt(model, technique)) / layer_bytes(gpt(model, "tp"))
    assert share == pytest.approx(FIGURE_7[model][number], abs=0.2)


@pytest.mark.parametrize("model, published", [("22b", 45.5625), ("175b", 45.5625), ("530b", 31.640625), ("1t", 32.958984375)])
def test_states_of_the_layers(model: str, published: float) -> None:
    """18 bytes for each of 12 h^2 matrix parameters a layer (figure 1), with gradients in FP32."""
    layers, hidden, *_, pipeline, _ = MODELS[model]
    one = gpt(model).dimensions
    assert one.attention_parameters + one.mlp_parameters == 12 * hidden**2
    width = states(Job(one, 2048, 1, 1, precision="bf16", engine_name="nanotron"))
    assert width.total * (one.attention_parameters + one.mlp_parameters) * layers / 8 / pipeline / 2**30 == pytest.approx(
        published, rel=1e-4
    )


@pytest.mark.parametrize("stage, gigabytes", [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_of_7_5_billion_parameters(stage: int, gigabytes: float) -> None:
    """ZeRO's example: 2 + 2 + 12 bytes a parameter over 64 devices. Megatron's engine has these widths."""
    one = gpt("22b").dimensions
    job = Job(one, 2048, 1, 64, data=64, zero_stage=stage, precision="fp16", engine_name="megatron")
    total = memory(job, load("h100-80gb")).stages[0].states / weight_parameters(job)[0] * 7.5e9
    assert total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_bytes_per_parameter() -> None:
    """Megatron-LM's distributed optimizer: bf16 with FP32 gradients takes 18 bytes, FP32 16."""
    one = gpt("22b").dimensions
    assert states(Job(one, 1, 1, 1, precision="bf16", engine_name="nanotron")).total == 18
    assert states(Job(one, 1, 1, 1, precision="fp32")).total == 16
    assert states(Job(one, 1, 1, 1, precision="bf16", pure=True)).total == 8


@pytest.mark.parametrize("layers, hidden, billions", [(24, 2304, 1.7), (36, 4096, 7.5), (48, 8192, 39.1), (128, 25600, 1008.0)])
def test_parameters_of_gpt(layers: int, hidden: int, billions: float) -> None:
    """SC21's equation 2: P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h))."""
    one = Dimensions(layers, hidden, 4 * hidden, 32, 32, 51200, hidden // 32, True, gated_mlp=False, positions=2048)
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden))
    assert one.parameters == pytest.approx(formula + 2 * hidden, abs=1)  # the formula leaves out the last norm
    assert round(one.parameters / 1e9, 1) == billions


def test_interleaving_costs_memory() -> None:
    """1 + (p - 1) / (p v) times the activations of 1F1B."""
    assert sum(in_flight(gpt("175b"), 0)) / 3 / 8 == pytest.approx(1 + 7 / (8 * 3))

"""Step time: limits of physics, the pipeline's simulation, published runs."""

from __future__ import annotations

import pytest

from danlu.plan.collectives import Group, gather_seconds, reduce_seconds
from danlu.plan.constants import priors, rates
from danlu.plan.hardware import load
from danlu.plan.job import Dimensions, Job
from danlu.plan.operators import layer_seconds, matmul_seconds
from danlu.plan.step_time import step_time

A100, H100 = load("a100-80gb"), load("h100-80gb")
LLAMA_8B = Dimensions(32, 4096, 14336, 32, 8, 128256, 128)
GPT_22B = Dimensions(48, 6144, 24576, 64, 64, 51200, 96, True, False, 2048)


def job(**changes: object) -> Job:
    return Job(LLAMA_8B, 8192, 1, 64, data=8, zero_stage=3).with_(**changes).check()


@pytest.mark.parametrize("recompute, sequence_parallel, seconds", [("full", False, 1.42), ("selective", True, 1.10)])
def test_published_22b_runs(recompute: str, sequence_parallel: bool, seconds: float) -> None:
    """Table 5 of the activation paper (arXiv 2205.05198): GPT 22B on 8 A100."""
    run = Job(GPT_22B, 2048, 4, 4, tensor=8, recompute=recompute, sequence_parallel=sequence_parallel, precision="fp16")
    assert step_time(run.with_(engine_name="megatron"), A100).seconds == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize("size", [64, 1000, 4096, 16384])
def test_no_product_beats_the_peak_or_the_memory(size: int) -> None:
    found = matmul_seconds(size, size, size, job(), H100, rates("hopper"))
    assert found > 2 * size**3 / H100.peak.bf16 and found > 6 * size**2 / H100.bandwidth  # type: ignore[operator]


def test_one_more_tile_is_one_more_wave() -> None:
    """132 multiprocessors: 132 tiles of 256 x 128 are one wave, and a row of output more begins another."""
    full = matmul_seconds(12 * 256, 11 * 128, 65536, job(), H100, rates("hopper"))
    more = matmul_seconds(12 * 256 + 1, 11 * 128, 65536, job(), H100, rates("hopper"))
    assert more > 1.2 * full


def test_rings_move_their_volume() -> None:
    """(n - 1) / n past every member inside a node; between nodes the ports limit it."""
    rate = rates("hopper")
    seconds = gather_seconds(8e9, Group(8), H100, rate)
    assert seconds == pytest.approx(7e9 / (H100.node_link * rate.node_link), rel=0.01)
    assert reduce_seconds(8e9, Group(8), H100, rate) == pytest.approx(2 * seconds, rel=0.01)
    across = gather_seconds(8e9, Group(8, stride=8), H100, rate)
    assert across == pytest.approx(7e9 / (H100.network * rate.network), rel=0.01)
    assert gather_seconds(8e9, Group(1), H100, rate) == 0


@pytest.mark.parametrize("change", [{"compile": True}, {"precision": "fp8"}, {"zero_stage": 1}, {"recompute": "none"}])
def test_faster(change: dict[str, object]) -> None:
    slow = job(recompute="selective", micro_batch=2)
    assert step_time(slow.with_(**change), H100).seconds < step_time(slow, H100).seconds


@pytest.mark.parametrize("change", [{"recompute": "full"}, {"offload": "optimizer-host"}, {"offload": "optimizer-disk"}])
def test_slower(change: dict[str, object]) -> None:
    assert step_time(job(**change), H100).seconds > step_time(job(), H100).seconds


def test_eight_bit_speeds_up_linear_layers_alone() -> None:
    half, eight = (layer_seconds(job(precision=each), H100, rates("hopper")) for each in ("bf16", "fp8"))
    assert eight.linear < half.linear
    assert (eight.attention, eight.elementwise) == (half.attention, half.elementwise)


def test_more_micro_batches_shrink_the_bubble() -> None:
    few, many = (step_time(job(data=1, zero_stage=0, pipeline=4, global_batch=each), H100) for each in (4, 64))
    assert few.bubble / few.seconds > 3 * many.bubble / many.seconds
    interleaved = job(data=1, zero_stage=0, pipeline=4, global_batch=64, virtual_stages=2, schedule="interleaved")
    assert step_time(interleaved, H100).bubble < many.bubble


def test_tensor_parallel_across_nodes_is_dear() -> None:
    inside = step_time(job(data=1, zero_stage=0, tensor=8, global_batch=8), H100)
    across = step_time(job(data=1, zero_stage=0, tensor=16, global_batch=8), H100)
    assert across.tensor > inside.tensor


@pytest.mark.parametrize("family", [*priors(), "unheard-of"])
def test_every_family_has_constants(family: str) -> None:
    assert 0 < rates(family).matmul <= 1


def test_figures_hang_together() -> None:
    found = step_time(job(), H100)
    assert found.tokens_per_second == pytest.approx(64 * 8192 / found.seconds)
    assert 0.2 < found.mfu < 0.7 and len(found.forward) == 1


def test_plans_the_cpu() -> None:
    one = Dimensions(4, 128, 352, 4, 4, 512, 32)
    assert 0 < step_time(Job(one, 64, 2, 4, precision="fp32"), load("cpu")).seconds < 10

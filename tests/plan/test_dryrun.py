"""The planner's memory beside the torch engine on fake tensors, and a few layers beside all of them."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.model.shape import ModelShape
from danlu.plan.job import Dimensions, Job, Lora
from danlu.plan.verify import compare, measure_all

SHAPE = ModelShape(vocab_size=512, layers=12, hidden_size=256, ffn_size=704, heads=8, kv_heads=4)


UNEVEN = SHAPE.model_copy(update={"vocab_size": 509, "hidden_size": 248, "head_size": 32})
"""Rows that three ranks cannot share evenly."""
BIASED = UNEVEN.model_copy(update={"qkv_bias": True, "output_bias": True, "mlp_bias": True})
NORMED = UNEVEN.model_copy(update={"family": "qwen3", "qk_norm": True})


def job(shape: ModelShape = SHAPE, **changes: Any) -> Job:
    return Job(Dimensions.from_shape(shape), 256, 2, 16).with_(**changes).check()


EVERYWHERE = Lora(8, (tuple(Dimensions.from_shape(SHAPE).matrices),) * 12, dropout=False, base_bits=32)
FEW = Lora(8, (("q_proj", "v_proj"),) * 12, dropout=False, base_bits=32)
UNLIKE = Lora(7, (("q_proj", "v_proj"),) * 6 + (("v_proj", "down_proj"),) * 6, dropout=False, base_bits=32)
SPLIT: dict[str, Any] = {"tensor": 2, "sequence_parallel": True}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"data": 4, "zero_stage": 3}, SPLIT | {"recompute": "full", "data": 2, "zero_stage": 1}])
def test_few_layers_tell_what_all_would(changes: dict[str, Any]) -> None:
    few, all_of_them = measure_all([(job(**changes), SHAPE, 0, whole) for whole in (False, True)])
    assert few == all_of_them


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"data": 2, "zero_stage": 3, "recompute": "full"},
        SPLIT | {"pipeline": 2, "recompute": "selective", "micro_batch": 1},
        {"data": 2, "zero_stage": 3, "pipeline": 2, "micro_batch": 1},
        {"pipeline": 3, "schedule": "zero-bubble", "virtual_stages": 2, "micro_batch": 1, "global_batch": 6},
        SPLIT | {"data": 3, "zero_stage": 1, "global_batch": 12, "recompute": "full", "lora": EVERYWHERE},
        {"data": 2, "zero_stage": 3, "pipeline": 2, "micro_batch": 1, "masks": 1, "lora": FEW},
    ],
)
def test_what_is_planned_is_what_the_engine_has(changes: dict[str, Any]) -> None:
    for check in compare(job(**changes), SHAPE):
        assert check.state_error == pytest.approx(0, abs=1e-9)
        assert abs(check.activation_error) < 0.05
        assert abs(check.peak_error) < 0.05


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (NORMED, {"data": 3, "zero_stage": 3}),
        (BIASED, {"tensor": 2, "data": 3, "zero_stage": 1}),
        (UNEVEN, {"data": 3, "zero_stage": 3, "pipeline": 2, "micro_batch": 1, "lora": UNLIKE}),
    ],
)
def test_states_are_exact_where_ranks_share_unevenly(shape: ModelShape, changes: dict[str, Any]) -> None:
    for check in compare(job(shape, global_batch=6, **changes), shape):
        assert check.state_error == 0


def test_a_pipeline_holds_no_more_for_more_micro_batches() -> None:
    jobs = [job(pipeline=2, micro_batch=1, global_batch=batch) for batch in (4, 16)]
    few, many = measure_all([(each, SHAPE, 1, False) for each in jobs])
    assert many.peak - few.peak < 256 * 256 * 4  # not even one hidden state: tokens alone

"""The planner's memory beside the torch engine on fake tensors, and a few layers beside all of them."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.model.shape import ModelShape
from danlu.plan.job import Dimensions, Job
from danlu.plan.verify import compare, measure_all

SHAPE = ModelShape(vocab_size=512, layers=12, hidden_size=256, ffn_size=704, heads=8, kv_heads=4)


def job(**changes: Any) -> Job:
    return Job(Dimensions.from_shape(SHAPE), 256, 2, 16).with_(**changes).check()


SPLIT: dict[str, Any] = {"tensor": 2, "sequence_parallel": True}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"data": 4, "zero_stage": 3}, SPLIT | {"recompute": "full", "data": 2, "zero_stage": 1}])
def test_few_layers_tell_what_all_would(changes: dict[str, Any]) -> None:
    few, all_of_them = measure_all([(job(**changes), SHAPE, 0, whole) for whole in (False, True)])
    assert few == all_of_them


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"data": 2, "zero_stage": 3}, SPLIT | {"pipeline": 2}, SPLIT | {"recompute": "selective"}])
def test_planned_states_and_activations_are_those_of_the_engine(changes: dict[str, Any]) -> None:
    for check in compare(job(**changes), SHAPE):
        assert check.state_error == pytest.approx(0, abs=1e-9)
        assert abs(check.activation_error) < 0.05

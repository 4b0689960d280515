"""Jobs: parameters against the shapes' own count, stages against the engine's split, recipes, wrong values."""

from __future__ import annotations

import pytest

from danlu import recipe as recipes
from danlu.errors import UserError
from danlu.model.counts import parameter_count
from danlu.model.presets import preset
from danlu.model.stages import split_layers
from danlu.plan.job import Dimensions, Job
from danlu.plan.parameters import trainable_parameters, weight_parameters

LLAMA_8B = Dimensions(32, 4096, 14336, 32, 8, 128256, 128)


def test_parameters_are_those_of_the_shape() -> None:
    for name in ("llama-10m", "llama-42m"):
        shape = preset(name).model_copy(update={"vocab_size": 32000})
        assert Dimensions.from_shape(shape).parameters == parameter_count(shape)
    assert LLAMA_8B.parameters == 8_030_261_248  # the model card's 8.03 B


@pytest.mark.parametrize("pipeline", [1, 2, 4, 8])
@pytest.mark.parametrize("tensor", [1, 4])
def test_stages_hold_the_model_once(pipeline: int, tensor: int) -> None:
    job = Job(LLAMA_8B, 4096, 1, 8, pipeline=pipeline, tensor=tensor)
    assert sum(map(sum, job.stages)) == 32
    norms = 32 * LLAMA_8B.small_parameters + LLAMA_8B.final_norm  # whole on every tensor rank
    assert tensor * sum(weight_parameters(job)) == LLAMA_8B.parameters + (tensor - 1) * norms
    assert trainable_parameters(job) == weight_parameters(job)


def test_split_is_the_engines_own() -> None:
    shape = preset("llama-42m").model_copy(update={"vocab_size": 32000, "layers": 8})
    job = Job(Dimensions.from_shape(shape), 128, 1, 8, pipeline=2, virtual_stages=2, schedule="interleaved")
    assert job.chunks == tuple(len(each) for each in split_layers(shape, 4))
    assert job.stages == (job.chunks[::2], job.chunks[1::2])


def test_nanotron_ends_a_stage_with_the_layer_that_passes_its_share() -> None:
    """80 layers and a head worth 1.1 of them on 4 stages: shares end at 20.3, 40.6 and 60.8 layers."""
    one = Dimensions(80, 8192, 28672, 64, 64, 131072, 128)
    assert Job(one, 4096, 1, 256, pipeline=4, engine_name="nanotron").chunks == (21, 20, 20, 19)


def test_recipe() -> None:
    recipe = recipes.parse(
        {
            "name": "planned",
            "model": {"preset": "llama-42m", "vocab_size": 32000},
            "data": {"sources": [{"path": "*.txt"}], "sequence_length": 256},
            "train": {"global_batch": 32, "precision": "bf16", "compile": True},
            "parallel": {"data": 2, "tensor": 2, "pipeline": 2, "zero_stage": 1, "sequence_parallel": True},
            "memory": {"micro_batch": 4, "recompute": "full", "recompute_every": 2},
        }
    )
    job = Job.from_recipe(recipe, recipes.resolve_shape(recipe, None))
    assert (job.devices, job.micro_batches, job.sequence, job.compile, job.sequence_parallel) == (8, 4, 256, True, True)
    assert (job.recompute, job.recompute_every, job.zero_stage, job.precision) == ("full", 2, 1, "bf16")


@pytest.mark.parametrize(
    "change, field",
    [
        ({"micro_batch": 0}, "micro_batch"),
        ({"precision": "fp4"}, "precision"),
        ({"tensor": 64}, "tensor"),
        ({"pipeline": 33}, "pipeline"),
        ({"schedule": "2f2b"}, "schedule"),
        ({"engine_name": "excel"}, "engine"),
    ],
)
def test_wrong_values_name_their_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}"):
        Job(LLAMA_8B, 4096, 1, 8).with_(**change).check()

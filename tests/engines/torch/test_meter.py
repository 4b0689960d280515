"""The meter counts what the allocator hands out, and knows what it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from danlu.engines.base import MEMORY_KINDS
from danlu.engines.torch.engine import TorchEngine

Of = Callable[..., Any]
LENGTH = 64


def metered(engine: TorchEngine, batch: dict[str, torch.Tensor]) -> dict[str, int]:
    engine.train_step(batch, 1e-3)
    return engine.metered_step(batch, 1e-3)[1][0]


def allocators_peak(engine: TorchEngine, batch: dict[str, torch.Tensor]) -> int:
    """The most bytes that torch's CPU allocator had handed out during a step, beyond those from before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        engine.train_step(batch, 1e-3)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize(
    ("overrides", "micro_batches"),
    [([], 1), (["train.precision=bf16"], 1), (["memory.recompute=selective"], 1), (["memory.recompute=full"], 2)],
)
def test_the_peak_is_the_allocators(engine_of: Of, batch_of: Of, overrides: list[str], micro_batches: int) -> None:
    """Within a thousandth: the rest is scratch space inside operators, which is no tensor."""
    batch = batch_of(micro_batches=micro_batches, micro_batch=8, length=LENGTH, ignored=0.1)
    engine = engine_of(*overrides, hidden_size=192, ffn_size=512)
    found = metered(engine, batch)
    before = found["parameters"] + found["optimizer"] + sum(tensor.nbytes for tensor in batch.values())
    assert found["peak"] == pytest.approx(before + allocators_peak(engine, batch), rel=1e-3)
    assert found["peak"] == sum(found[f"peak_{kind}"] for kind in MEMORY_KINDS)


def test_states_are_exact(engine_of: Of, batch_of: Of) -> None:
    """4 bytes a parameter each for weights and gradients, and 8 for the moments; a step count is 4 a tensor."""
    engine = engine_of()
    found = metered(engine, batch_of())
    parameters = sum(tensor.numel() for tensor in engine.parameters.values())
    assert found["parameters"] == found["gradients"] == 4 * parameters
    assert found["optimizer"] == 8 * parameters + 4 * len(engine.parameters)
    assert found["gathered"] == found["casts"] == found["offloaded"] == 0


def test_activations_are_what_a_layer_leaves(engine_of: Of, batch_of: Of) -> None:
    """A layer more leaves as much as the one before; twice the tokens twice as much; a recomputed layer its input alone."""
    tokens, hidden = 4 * LENGTH, 48

    def left(layers: int, *overrides: str, micro_batch: int = 4) -> int:
        return metered(engine_of(*overrides, layers=layers), batch_of(micro_batch=micro_batch, length=LENGTH))["activations"]

    one, two, three = (left(layers) for layers in (1, 2, 3))
    assert three - two == two - one > 10 * 4 * tokens * hidden
    doubled = left(3, micro_batch=8) - left(2, micro_batch=8)
    assert doubled == 2 * (three - two)
    recomputed = left(3, "memory.recompute=full") - left(2, "memory.recompute=full")
    assert recomputed == pytest.approx(4 * tokens * hidden, rel=0.02)  # and a few bytes of the random state


def test_half_precision_copies_of_weights_are_told_apart(engine_of: Of, batch_of: Of) -> None:
    """Two bytes for every weight of a matrix product that the backward pass reads again."""
    engine = engine_of("train.precision=bf16", layers=4)
    found = metered(engine, batch_of())
    matrices = sum(tensor.numel() for name, tensor in engine.parameters.items() if tensor.ndim == 2 and "embed" not in name)
    head = engine.parameters["lm_head.weight"].numel()
    assert 2 * (matrices - head) <= found["casts"] <= 2 * matrices
    assert metered(engine_of(layers=4), batch_of())["casts"] == 0


def test_what_is_offloaded_is_not_in_memory(engine_of: Of, batch_of: Of) -> None:
    plain, disk = engine_of(), engine_of("memory.offload_optimizer=disk")
    inside, outside = metered(plain, batch_of()), metered(disk, batch_of())
    counts = 4 * len(plain.parameters)
    assert outside["optimizer"] == counts
    assert outside["offloaded"] == inside["optimizer"] - counts
    assert {k: outside[k] for k in ("parameters", "gradients", "activations")} == {
        k: inside[k] for k in ("parameters", "gradients", "activations")
    }


def test_the_metered_step_trains_as_any_other(engine_of: Of, batch_of: Of) -> None:
    plain, followed = engine_of(), engine_of()
    for step in range(3):
        result = followed.metered_step(batch_of(seed=step), 1e-2)[0]
        assert result == plain.train_step(batch_of(seed=step), 1e-2)
    assert all(
        torch.equal(left, right) for left, right in zip(plain.parameters.values(), followed.parameters.values(), strict=True)
    )


def test_a_failed_step_leaves_torch_as_it_was(engine_of: Of, batch_of: Of) -> None:
    resize = torch.UntypedStorage.resize_
    engine = engine_of()
    with pytest.raises(KeyError):
        engine.metered_step({}, 1e-3)
    assert torch.UntypedStorage.resize_ is resize
    assert not any(parameter._post_accumulate_grad_hooks for parameter in engine.parameters.values())
    engine.train_step(batch_of(), 1e-3)


LAYOUTS = """
import json, os, socket, sys
import torch
import torch.distributed as dist
from danlu.engines.torch.trial import meter_step
from danlu.recipe import parse

torch.set_num_threads(1)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
other = os.fork()  # torch is imported once for both
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": "0" if other else "1"}
dist.init_process_group("gloo")
for parallel, memory in json.loads(sys.argv[1]):
    found = meter_step(parse({
        "name": "meter", "stages": ["train"],
        "model": {"family": "llama", "layers": 4, "hidden_size": 64, "ffn_size": 128, "heads": 4, "vocab_size": 128},
        "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": 16},
        "train": {"global_batch": 8, "device": "cpu"}, "parallel": parallel, "memory": memory,
    }))
    if other:
        print(json.dumps(found), flush=True)
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""
PARAMETERS = 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 128 * 64 + 64
LAYER = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
TENSORS = 4 * 9 + 3


@pytest.mark.slow
def test_zero_stages_take_what_their_formula_says() -> None:
    """Per parameter and process, of two (Rajbhandari et al. 2020): what is kept, the gradients between micro-batches, the states.

    Whole copies of parameters while in use are counted apart: all of them at stages 1 and 2, at 3 a layer beside the ends.
    """
    cases = [({"data": 2, "zero_stage": stage}, {"micro_batch": 2}) for stage in range(4)]
    cases += [({"tensor": 2}, {}), ({"pipeline": 2}, {"micro_batch": 4})]
    command = [sys.executable, "-W", "ignore", "-c", LAYOUTS, json.dumps(cases)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    zero, one, two, three, tensor, pipeline = (json.loads(line) for line in ended.stdout.splitlines())
    whole, half = 4 * PARAMETERS, 2 * PARAMETERS
    assert (zero["parameters"], zero["gathered"], zero["gradients"]) == (whole, 0, whole)
    assert zero["optimizer"] == 2 * whole + 4 * TENSORS
    for split in (one, two, three):
        assert split["parameters"] == half
        assert split["optimizer"] == 2 * half + 4 * TENSORS
    assert one["gathered"] == two["gathered"] == whole
    assert three["gathered"] == 4 * (PARAMETERS - 4 * LAYER) + 4 * LAYER
    # Stage 1 sums whole gradients over the micro-batches; 2 and 3 have those of a layer beside the shards.
    assert one["gradients"] >= whole
    assert half <= two["gradients"] <= half + 4 * (PARAMETERS - 3 * LAYER)
    assert half <= three["gradients"] <= half + 4 * (PARAMETERS - 3 * LAYER)
    # A tensor rank has half of all but the norms; a pipeline rank two of the four layers and one of the ends.
    norms = 9 * 64
    assert tensor["parameters"] == 4 * (norms + (PARAMETERS - norms) // 2)
    assert pipeline["parameters"] == 4 * (2 * LAYER + 128 * 64)

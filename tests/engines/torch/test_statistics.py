"""What an observed step says of tensors, beside a copy of the model and plain arithmetic; in layouts, beside one process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from danlu.engines.base import Observed
from danlu.engines.torch.engine import TorchEngine
from danlu.watch.histogram import compressed, histogram

Of = Callable[..., Any]


def check(found: Observed, kind: str, name: str, values: torch.Tensor, rel: float = 1e-6) -> None:
    values = values.double().flatten()
    sums = found.tensors[kind, name]
    assert sums.entries == values.numel()
    assert sums.squares == pytest.approx(values.square().sum().item(), rel=rel)
    assert sums.largest == pytest.approx(values.abs().max().item(), rel=rel)
    assert sums.total == pytest.approx(values.sum().item(), rel=rel, abs=rel * values.abs().sum().item())
    assert sums.zeros == (values == 0).sum()


@pytest.mark.parametrize("overrides", [[], ["train.optimizer.gradient_clipping=0.01"], ["memory.offload_optimizer=disk"]])
def test_weights_gradients_and_updates_are_those_of_the_step(engine_of: Of, batch_of: Of, overrides: list[str]) -> None:
    batches = [batch_of(micro_batches=2, ignored=0.2, seed=seed) for seed in range(3)]
    engine: TorchEngine = engine_of(*overrides, tied_embeddings=True)
    plain: TorchEngine = engine_of(*overrides, tied_embeddings=True)
    for batch in batches[:2]:
        engine.train_step(batch, 1e-2)
        plain.train_step(batch, 1e-2)
    before = {name: parameter.detach().clone() for name, parameter in plain.own.items()}
    gradients: dict[str, torch.Tensor] = {}
    step = plain.optimizer.step

    def stepping(*arguments: Any) -> Any:
        gradients.update({name: parameter.grad.clone() for name, parameter in plain.own.items() if parameter.grad is not None})
        return step(*arguments)

    plain.optimizer.step = stepping  # type: ignore[method-assign]
    expected = plain.train_step(batches[2], 1e-2)
    result, found = engine.observed_step(batches[2], 1e-2, histograms=True)
    assert result == expected
    for name, parameter in plain.own.items():
        assert torch.equal(parameter, engine.own[name]), "the observed step trains as any other"
        check(found, "parameter", name, parameter.detach())
        check(found, "gradient", name, gradients[name])
        update = parameter.detach().double() - before[name].double()
        sums = found.tensors["update", name]
        assert math.sqrt(sums.squares) == pytest.approx(update.norm().item(), rel=1e-4)  # float32 weights round it
        spread = sums.spread
        assert spread is not None and spread.sum() == update.numel()
    name = "model.layers.1.mlp.up_proj.weight"
    spread = found.tensors["gradient", name].spread
    assert spread is not None
    told, numpys = compressed(spread), histogram(gradients[name])
    assert told.exponent == numpys.exponent and told.counts.tolist() == numpys.counts.tolist()


def test_activations_and_logits_are_those_of_the_forward_pass(engine_of: Of, batch_of: Of, shape_of: Of) -> None:
    """Beside what hooks on a plain forward pass of the same model see; logits from the softmax's own inputs in float64."""
    engine: TorchEngine = engine_of(qk_norm=True, family="qwen3")
    batch = batch_of(micro_batches=2)
    outputs: dict[str, list[torch.Tensor]] = {}
    layer = engine.model.model.layers["1"]
    hooks = [
        module.register_forward_hook(lambda _m, _i, output, name=name: outputs.setdefault(name, []).append(output.detach()))
        for name, module in {"": layer, ".self_attn": layer.self_attn, ".mlp": layer.mlp}.items()  # type: ignore[union-attr,dict-item]
    ]
    attended: list[float] = []
    original = torch.nn.functional.scaled_dot_product_attention

    def attention(q: torch.Tensor, k: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        logits = q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])
        attended.append(logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), -math.inf).max().item())
        return original(q, k, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
        with torch.no_grad():
            for micro in range(2):
                engine.model(batch["inputs"][micro])
    for hook in hooks:
        hook.remove()
    found = engine.observed_step(batch, 1e-3, histograms=False)[1]
    for part, each in outputs.items():
        check(found, "activation", f"model.layers.1{part}", torch.cat(each))
    expected = max(attended[1], attended[1 + 3])
    assert found.attention_logits["model.layers.1.self_attn"] == pytest.approx(expected, rel=1e-5)
    assert not layer._forward_hooks and engine.observer is None


def test_documents_hide_logits(engine_of: Of, batch_of: Of) -> None:
    engine: TorchEngine = engine_of()
    batch = batch_of()
    whole = engine.observed_step(batch, 0.0, histograms=False)[1].attention_logits
    alone = batch | {"documents": torch.arange(16, dtype=torch.int32).expand(1, 4, 16)}  # every token sees itself alone
    own = engine.observed_step(alone, 0.0, histograms=False)[1].attention_logits
    assert all(own[name] < whole[name] for name in whole)


@pytest.mark.parametrize("overrides", [["memory.recompute=full"], ["memory.recompute=selective"], ["train.precision=bf16"]])
def test_recomputation_and_precision_change_nothing_of_the_step(engine_of: Of, batch_of: Of, overrides: list[str]) -> None:
    plain, observed, simple = engine_of(*overrides), engine_of(*overrides), engine_of(*overrides[:0])
    for seed in range(2):
        batch = batch_of(micro_batches=2, seed=seed)
        expected = plain.train_step(batch, 1e-2)
        result, found = observed.observed_step(batch, 1e-2, histograms=False)
        assert result == expected
        reference = simple.observed_step(batch, 1e-2, histograms=False)[1]
        entries = {key: sums.entries for key, sums in found.tensors.items()}
        assert entries == {key: sums.entries for key, sums in reference.tensors.items()}, "a recomputed pass is not counted"
    assert all(torch.equal(one, other) for one, other in zip(plain.own.values(), observed.own.values(), strict=True))


def test_a_skipped_step_has_no_update_and_says_what_is_not_finite(engine_of: Of, batch_of: Of) -> None:
    engine: TorchEngine = engine_of()
    with torch.no_grad():
        engine.own["model.layers.0.mlp.up_proj.weight"][0, 0] = math.nan
    result, found = engine.observed_step(batch_of(), 1e-3, histograms=True)
    assert result.skipped is not None
    assert {kind for kind, _ in found.tensors} == {"gradient", "activation"}
    sums = found.tensors["activation", "model.layers.2"]
    assert math.isnan(sums.squares) and sums.spread is not None and sums.spread[:, -1].sum() > 0


LAYOUTS: list[dict[str, Any]] = [
    {"data": 2, "tensor": 2},
    {"data": 4, "zero_stage": 3},
    {"data": 2, "pipeline": 2, "zero_stage": 1},
    {"tensor": 2, "pipeline": 2, "sequence_parallel": True},
]


@pytest.mark.slow
def test_layouts_say_what_one_process_says(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("observed.py")
    command = [sys.executable, "-W", "ignore", str(worker), json.dumps(LAYOUTS), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    reference, *layouts = (json.loads(line) for line in (tmp_path / "told").read_text().splitlines())
    assert len(layouts) == len(LAYOUTS)
    assert reference["seconds"].keys() == {"forward", "backward", "optimizer"}
    for layout, found in zip(LAYOUTS, layouts, strict=True):
        assert found["seconds"].keys() == {"forward", "backward", "optimizer", "communication"}
        assert min(found["seconds"].values()) > 0
        assert found["logits"] == pytest.approx(reference["logits"], rel=1e-4), layout
        assert found["tensors"].keys() == reference["tensors"].keys()
        for key, sums in reference["tensors"].items():
            entries, total, squares, largest, zeros = found["tensors"][key]["sums"]
            size = math.sqrt(sums["sums"][2])
            assert (entries, zeros) == (sums["sums"][0], sums["sums"][4]), (layout, key)
            assert squares == pytest.approx(sums["sums"][2], rel=1e-3), (layout, key)
            assert total == pytest.approx(sums["sums"][1], abs=1e-3 * size * math.sqrt(entries)), (layout, key)
            assert largest == pytest.approx(sums["sums"][3], rel=1e-3), (layout, key)
            moved = np.abs(np.array(found["tensors"][key]["spread"]) - np.array(sums["spread"])).sum() / 2
            assert moved <= 2 + 0.01 * entries, (layout, key)  # entries that rounding takes over an edge

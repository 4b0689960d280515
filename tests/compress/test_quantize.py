"""8-bit weights: their files, what they cost, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from danlu import serving, stages
from danlu.compress.perplexity import perplexity
from danlu.compress.plan import Plan
from danlu.compress.rounding import nearest, relative_error, restore, scales
from danlu.compress.stored import SECTION
from danlu.run_folder import RunFolder
from danlu.serve.executor import Piece
from danlu.serve.load import load

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small(trained_folder: tuple[RunFolder, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    from danlu import quantizing

    place = tmp_path_factory.mktemp("small") / "small"
    return place, quantizing.quantize(trained_folder[0].path, place, Plan(), None, 400, True, False, print)


def test_rows_are_rounded_to_the_nearest_of_255_steps() -> None:
    weight = np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32)
    weight[3] = 0
    scale = scales(weight, 8, 0)
    numbers = nearest(weight, scale, 8)
    assert numbers.dtype == np.int8 and np.abs(numbers).max() == 127
    back = restore(numbers, scale)
    steps = np.abs(weight).max(axis=1, keepdims=True) / 127
    assert (np.abs(back - weight) <= steps * 0.5001).all()
    assert relative_error(weight, back) == pytest.approx(np.linalg.norm(back - weight) / np.linalg.norm(weight), rel=1e-4)


def test_the_figures_are_those_of_the_files(small: tuple[Path, dict[str, object]], trained_folder: tuple[RunFolder, str]) -> None:
    place, result = small
    assert result["bytes"] == (place / "model.safetensors").stat().st_size
    names = load_file(place / "model.safetensors")
    assert all(array.dtype == np.int8 for name, array in names.items() if array.ndim == 2 and not name.endswith("_scale"))
    assert json.loads((place / "config.json").read_text())["quantization_config"]["quant_method"] == "compressed-tensors"
    assert 0.9 < result["perplexity_after"] / result["perplexity_before"] < 1.02  # type: ignore[operator]
    worst = list(result["worst"].values())  # type: ignore[attr-defined]
    assert len(worst) == 5 and worst == sorted(worst, reverse=True) and 0 < worst[0] < 0.02


def test_perplexity_is_that_of_the_training_engine(trained_folder: tuple[RunFolder, str]) -> None:
    trained = stages.open_trained(trained_folder[0], print)
    tokens = trained.prepared.validation.window(0, 100).astype(np.int64)
    opened = serving.open_model(trained_folder[0].path, print)
    found = perplexity(load(opened.shape, opened.weights, "plain", 128, "cpu"), tokens)
    with torch.no_grad():
        logits = trained.engine.model(torch.tensor(tokens)[None])[0, :-1].double()  # type: ignore[attr-defined]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]))
    assert math.log(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("case", ["weights only", "no instructions", "no numba"])
def test_where_activations_are_not_rounded_it_is_the_float_model_of_these_weights(
    small: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    place = tmp_path / "q"
    shutil.copytree(small[0], place)
    config = json.loads((place / "config.json").read_text())
    if case == "weights only":
        config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None
        (place / "config.json").write_text(json.dumps(config))
    elif case == "no instructions":
        monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", dict)
    else:
        monkeypatch.setitem(sys.modules, "danlu.serve.int8.executor", None)
    opened = serving.open_model(place, print)
    executor = load(opened.shape, opened.weights, opened.scheme, 64, "cpu")
    tokens = [number * 37 % 200 for number in range(40)]
    logits_nv = executor.run([Piece(tokens, 0, [2, 0, 3], 40)])
    stored = load_file(place / "model.safetensors")
    floats = {name: it * stored.get(f"{name}_scale", 1) for name, it in stored.items() if not name.endswith("_scale")}
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{k: v for k, v in config.items() if k != SECTION}))
    theirs.load_state_dict({name: torch.tensor(array) for name, array in floats.items()}, strict=not opened.shape.tied_embeddings)
    with torch.no_grad():
        expected_nv = theirs.eval()(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(logits_nv, expected_nv, rtol=1e-4, atol=1e-4)


def test_the_verb(danlu: Call, trained_folder: tuple[RunFolder, str], tmp_path: Path, recipe_file: Path) -> None:
    code, out, _ = danlu("quantize", trained_folder[0].path, "--to", tmp_path / "q", "--tokens", 200, "--json")
    assert code == 0 and json.loads(out)["tokens"] == 200
    assert serving.open_model(tmp_path / "q", print).scheme == "w8a8"
    assert danlu("quantize", trained_folder[0].path, "--to", tmp_path / "q")[:1] == (2,)
    code, out, _ = danlu(
        "quantize", trained_folder[0].path, "--to", tmp_path / "q", "--replace", "--scheme", "w8a16", "--file", recipe_file
    )
    assert code == 0 and "computed by TorchExecutor" in out and "most is lost in" in out
    assert serving.open_model(tmp_path / "q", print).scheme == "w8a16"
    code, _, err = danlu("quantize", tmp_path / "q", "--to", tmp_path / "r")
    assert code == 2 and "is quantized already" in err


@pytest.mark.parametrize("damage", ["missing", "extra", "type", "shape", "nan", "cut", "method"])
def test_damaged_files(small: tuple[Path, dict[str, object]], tmp_path: Path, danlu: Call, damage: str) -> None:
    place = tmp_path / "q"
    place.mkdir()
    for file in small[0].iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    arrays, name = load_file(place / "model.safetensors"), "model.layers.0.mlp.up_proj.weight"
    if damage == "missing":
        del arrays[name]
    elif damage == "extra":
        arrays["more"] = arrays[name]
    elif damage == "type":
        arrays[name] = arrays[name].astype(np.float32)
    elif damage == "shape":
        arrays[name] = arrays[name][1:]
    elif damage == "nan":
        arrays[f"{name}_scale"] = arrays[f"{name}_scale"] * np.nan
    save_file(arrays, place / "model.safetensors")
    if damage == "cut":
        data = (place / "model.safetensors").read_bytes()
        (place / "model.safetensors").write_bytes(data[:-10])
    if damage == "method":
        config = json.loads((place / "config.json").read_text())
        config["quantization_config"]["quant_method"] = "gptq"
        (place / "config.json").write_text(json.dumps(config))
    code, _, err = danlu("serve", place, "--port", 0)
    words = {"missing": "is missing", "extra": "does not have", "type": "is float32", "shape": "the model needs int8"}
    words |= {"nan": "holds NaN", "cut": "cannot be read", "method": "quantization_config is 'gptq'"}
    assert code == 2 and words[damage] in err and err.count("\n") == 1

"""GPTQ, SmoothQuant and 4 bits: against arithmetic in 64-bit floats, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from danlu import serving
from danlu.compress import gptq
from danlu.compress.calibration import Layer
from danlu.compress.packing import pack, unpack
from danlu.compress.plan import Plan
from danlu.compress.quantize import quantize
from danlu.compress.rounding import nearest, restore, scales
from danlu.compress.smoothquant import smooth
from danlu.compress.stored import SECTION, restored
from danlu.data.text_file import text_stream
from danlu.model.drawing import draw
from danlu.model.families import tensor_shapes, to_hugging_face
from danlu.model.shape import ModelShape
from danlu.run_folder import RunFolder
from danlu.serve.executor import Piece
from danlu.serve.load import load

Call = Callable[..., tuple[int, str, str]]
SHAPE = ModelShape(family="qwen2", vocab_size=97, layers=2, hidden_size=32, ffn_size=48, heads=4, kv_heads=2, qkv_bias=True)


def correlated(inputs: int, count: int) -> NDArray[np.float64]:
    draws = np.random.default_rng(1)
    return draws.normal(size=(count, inputs)) @ draws.normal(size=(inputs, inputs)) + draws.normal(size=inputs) * 3


def naive(
    weight: NDArray[np.float64], scale: NDArray[np.float64], bits: int, hessian: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Optimal brain quantization in the order of GPTQ: an input at a time, with the inverse of what is left of H."""
    order = np.argsort(-np.diag(hessian), kind="stable")
    damped = hessian + gptq.DAMPING * np.diag(hessian).mean() * np.eye(len(hessian))
    rest, made = weight.copy(), np.zeros(weight.shape)
    for at, column in enumerate(order):
        left = order[at:]
        inverse = np.linalg.inv(damped[np.ix_(left, left)])
        steps = scale[:, column * scale.shape[1] // weight.shape[1]]
        most = 2 ** (bits - 1) - 1
        made[:, column] = np.clip(np.rint(rest[:, column] / steps), -8 if bits == 4 else -127, most)
        error = rest[:, column] - made[:, column] * steps
        rest[:, left] -= np.outer(error / inverse[0, 0], inverse[0])
    return made


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (4, 0), (4, 20)])
def test_compensated_rounding_is_that_of_the_naive_loop_and_never_worse_than_rounding(bits: int, group: int) -> None:
    x = correlated(140, 600)  # more inputs than a block of the real one
    hessian = x.T @ x / len(x)
    weight = np.random.default_rng(2).normal(size=(30, 140)).astype(np.float32)
    scale = scales(weight, bits, group, np.diag(hessian))
    ours, plain = gptq.compensated(weight, scale, bits, hessian), nearest(weight, scale, bits)
    expected = naive(weight.astype(np.float64), scale.astype(np.float64), bits, hessian)
    wrong = [
        ((x @ (restore(each.astype(np.int8), scale).astype(np.float64) - weight).T) ** 2).mean(axis=0)
        for each in (ours, plain, expected)
    ]
    assert (wrong[0] <= wrong[1] * (1 + 1e-9)).all()
    assert wrong[0].sum() < 0.7 * wrong[1].sum()
    chosen = wrong[2] < wrong[1]
    assert (ours[chosen] != expected[chosen]).mean() < 0.01  # ties that 32 and 64 bits round differently


def test_inputs_that_the_text_never_shows() -> None:
    weight = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32)
    weight[1] = 0
    scale = scales(weight, 8, 0)
    assert (gptq.compensated(weight, scale, 8, np.zeros((5, 5))) == nearest(weight, scale, 8)).all()


def weights_of(shape: ModelShape) -> dict[str, NDArray[np.float32]]:
    return {name: draw(shape, name, 0) for name in tensor_shapes(shape)}


def test_smoothing_leaves_the_layer_as_it_was_and_evens_its_inputs() -> None:
    weights = {name.removeprefix("model.layers.1."): it for name, it in weights_of(SHAPE).items() if "layers.1." in name}
    draws = np.random.default_rng(0)
    for name in weights:
        weights[name] = (
            weights[name] * 10 if weights[name].ndim == 2 else draws.normal(1, 0.5, weights[name].shape).astype(np.float32)
        )
    weights["input_layernorm.weight"][3] = 40
    weights["mlp.up_proj.weight"][5] *= 30
    layer, hidden = Layer(SHAPE, 1), [torch.tensor(correlated(32, 50), dtype=torch.float32)]
    layer.set(weights)
    before, seen = layer.run(hidden), layer.observe(hidden)
    moved = smooth(SHAPE, weights, {name: each.largest.numpy() for name, each in seen.items()})
    layer.set(weights)
    after, later = layer.run(hidden), layer.observe(hidden)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-3)
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        spread = [float(each[name].largest.max() / each[name].largest.median()) for each in (seen, later)]
        assert spread[1] < spread[0] / 3
    for name, scale in moved.items():
        expected = seen[name].hessian / scale / scale[:, None]
        np.testing.assert_allclose(later[name].hessian, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_a_whole_model_is_calibrated_on_what_transformers_computes() -> None:
    weights = {name: it * (5 if it.ndim == 2 else 1) for name, it in weights_of(SHAPE).items()}
    text = np.random.default_rng(0).integers(0, 97, 600)
    made = quantize(SHAPE, weights, Plan("w4a16", 16, ("lm_head",), ("gptq",)), text)
    floats = restored(made.arrays)
    assert (floats["lm_head.weight"] == weights["lm_head.weight"]).all() and "lm_head.weight" not in made.errors
    theirs = transformers_model(to_hugging_face(SHAPE, bos_token_id=None, eos_token_id=None), floats)
    read: list[NDArray[np.float64]] = []
    projection = theirs.model.layers[1].self_attn.q_proj
    projection.register_forward_pre_hook(lambda _, given: read.append(given[0][0].double().numpy()))
    with torch.no_grad():
        for start in (0, 512):
            theirs(torch.tensor(text[start : start + 512])[None])
    x, name = np.concatenate(read), "model.layers.1.self_attn.q_proj.weight"
    wrong, right = x @ (floats[name] - weights[name]).T.astype(np.float64), x @ weights[name].T.astype(np.float64)
    assert made.errors[name] == pytest.approx(np.linalg.norm(wrong) / np.linalg.norm(right), rel=1e-4)
    rounded = quantize(SHAPE, weights, Plan("w4a16", 16)).arrays
    off = x @ (restored(rounded)[name] - weights[name]).T
    assert np.linalg.norm(wrong) < 0.8 * np.linalg.norm(off)


def transformers_model(config: dict[str, Any], floats: dict[str, NDArray[Any]]) -> Any:
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**{name: it for name, it in config.items() if name != SECTION})
    )
    tied = bool(config["tie_word_embeddings"])
    theirs.load_state_dict({name: torch.tensor(array) for name, array in floats.items()}, strict=not tied)
    return theirs.eval()


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_words_hold_the_first_value_in_their_lowest_bits(bits: int) -> None:
    numbers = np.random.default_rng(0).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (5, 11)).astype(np.int8)
    packed = pack(numbers, bits)
    for row, values in enumerate(numbers.tolist()):
        whole = sum((value + 2 ** (bits - 1)) << bits * at for at, value in enumerate(values))
        assert [int(word) & 0xFFFFFFFF for word in packed[row]] == [
            (whole >> 32 * at) & 0xFFFFFFFF for at in range(packed.shape[1])
        ]
    assert (unpack(packed, bits, 11) == numbers).all()


def test_four_bits_end_to_end(danlu: Call, trained_folder: tuple[RunFolder, str], tmp_path: Path, corpus_file: Path) -> None:
    place = tmp_path / "q"
    asked = (
        "--to",
        place,
        "--scheme",
        "w4a16",
        "--group",
        16,
        "--int8-cache",
        "--keep",
        "*embed_tokens",
        "--calibrate",
        corpus_file,
    )
    code, out, err = danlu("quantize", trained_folder[0].path, *asked, "--tokens", 400, "--calibration-tokens", 1000, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["calibration_tokens"] == 1000 and result["executor"] == "TorchExecutor"
    assert 0.9 < result["perplexity_after"] / result["perplexity_before"] < 1.1
    section = json.loads((place / "config.json").read_text())[SECTION]
    assert section["format"] == "pack-quantized" and section["config_groups"]["group_0"]["weights"]["group_size"] == 16
    ends = section["config_groups"]["group_1"]
    assert ends["targets"] == ["lm_head"] and (ends["weights"]["num_bits"], ends["weights"]["strategy"]) == (8, "channel")
    assert abs(result["int8_cache_increase"]) < 0.01 and result["perplexity_int8_cache"] != result["perplexity_before"]
    opened = serving.open_model(place, print)
    theirs = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)  # by the package compressed-tensors
    tokens = [number * 37 % 200 for number in range(30)]
    ours = load(opened.shape, place, opened.scheme, 64, "cpu").run([Piece(tokens, 0, [0, 1], 30)])
    with torch.no_grad():
        np.testing.assert_allclose(ours, theirs(torch.tensor([tokens])).logits[0].numpy(), rtol=1e-4, atol=1e-4)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox 炉火 def return")
    found = json.loads(danlu("evaluate", place, "--file", text, "--json")[1])
    with text_stream(text, opened.model.tokenizer) as stream, torch.no_grad():
        ids = torch.tensor(stream.window(0, stream.tokens).astype(np.int64))
        loss = torch.nn.functional.cross_entropy(theirs(ids[None]).logits[0, :-1].double(), ids[1:])
    assert (found["loss"], found["bytes"]) == (pytest.approx(float(loss), rel=1e-5), len(text.read_bytes()))
    assert "give one with --file" in danlu("evaluate", place)[2]
    code, out, err = danlu("generate", place, "--prompt", "the ", "--max-tokens", 3)
    assert code == 0 and out.startswith("the "), err


def test_smoothquant_by_the_verb(danlu: Call, trained_folder: tuple[RunFolder, str], tmp_path: Path, corpus_file: Path) -> None:
    asked = ("--to", tmp_path / "q", "--calibrate", corpus_file, "--method", "smoothquant", "--method", "gptq")
    code, out, err = danlu("quantize", trained_folder[0].path, *asked, "--tokens", 400, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert 0.97 < result["perplexity_after"] / result["perplexity_before"] < 1.03
    norm = "model.layers.0.input_layernorm.weight"
    stored = load_file(tmp_path / "q/model.safetensors")
    assert stored["model.layers.0.mlp.down_proj.weight"].dtype == np.int8
    assert np.ptp(stored[norm]) > 0.1  # training alone leaves it near 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--scheme", "w4a16", "--group", "24"), "its 32 inputs are not whole groups of 24"),
        (("--group", "16"), "take --scheme w8a16"),
        (("--method", "gptq"), "name one with --calibrate"),
        (("--keep", "model.layers.9.*"), "no matrix has such a name"),
        (("--keep", "*"), "leaves nothing to quantize"),
        (
            ("--calibrate", "short.txt"),
            "the calibration text is too short: 3 tokens for the 64 inputs of model.layers.0.mlp.down_proj",
        ),
        (("--calibrate", "none.txt"), "none.txt"),
        (("--calibrate", "short.txt", "--scheme", "w8a16", "--method", "smoothquant"), "w8a16 has none"),
    ],
)
def test_what_is_refused(
    danlu: Call,
    trained_folder: tuple[RunFolder, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("a")
    code, _, err = danlu("quantize", trained_folder[0].path, "--to", "q", *asked)
    assert code == 2 and words in err and err.count("\n") == 1 and not Path("q").exists()

"""Safetensors in the Hugging Face layout: written in pieces that transformers reads, and every damage named."""

from __future__ import annotations

import errno
import json
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from danlu.engines import hugging_face
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.weights import write_file
from danlu.errors import UserError
from danlu.model.families import tensor_shapes, to_hugging_face

EngineOf = Callable[..., TorchEngine]
Randomise = Callable[[Any], None]

UP = "model.layers.1.mlp.up_proj.weight"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def engine(engine_of: EngineOf, randomise: Randomise) -> TorchEngine:
    made = engine_of()
    randomise(made.model)
    return made


@pytest.fixture
def tensors(engine: TorchEngine) -> dict[str, Tensor]:
    """What the engine's export holds, to be damaged."""
    return {name: tensor.detach().clone() for name, tensor in engine.own.items()}


def refusal(engine: TorchEngine, folder: Path) -> str:
    """The one line that an import of the folder ends with."""
    with pytest.raises(UserError) as caught:
        engine.import_weights(folder)
    text = str(caught.value)
    assert str(folder) in text and "\n" not in text
    return text


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond this many bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("tied", [False, True])
def test_an_export_holds_the_layout_and_comes_back_bit_for_bit(
    engine_of: EngineOf, randomise: Randomise, tmp_path: Path, tied: bool
) -> None:
    engine = engine_of(tied_embeddings=tied)
    randomise(engine.model)
    engine.export_weights(tmp_path, "fp32")
    with safe_open(tmp_path / SINGLE, "pt") as reader:
        assert reader.metadata() == {"format": "pt"}
        assert {name: tuple(reader.get_slice(name).get_shape()) for name in reader.keys()} == tensor_shapes(engine.shape)  # noqa: SIM118
    other = engine_of("train.seed=9", tied_embeddings=tied)
    other.import_weights(tmp_path)
    for name, tensor in engine.own.items():
        assert torch.equal(tensor, other.own[name]), name
    assert (other.model.lm_head.weight is other.model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_type_of_an_export_and_its_import(
    engine_of: EngineOf, engine: TorchEngine, tmp_path: Path, dtype: str, torch_dtype: torch.dtype
) -> None:
    """Half precision is the rounded weight, and reading it gives FP32 again."""
    engine.export_weights(tmp_path, dtype)
    other = engine_of()
    other.import_weights(tmp_path)
    saved = load_file(tmp_path / SINGLE)
    for name, tensor in engine.own.items():
        assert saved[name].dtype == torch_dtype
        assert torch.equal(saved[name], tensor.to(torch_dtype))
        assert other.own[name].dtype == torch.float32
        assert torch.equal(other.own[name], tensor.to(torch_dtype).float())


def test_shards_are_read_by_transformers_and_by_us(
    engine_of: EngineOf, engine: TorchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 30_000
    monkeypatch.setattr(hugging_face, "SHARD_BYTES", limit)
    engine.export_weights(tmp_path, "fp32")
    (tmp_path / "config.json").write_text(json.dumps(to_hugging_face(engine.shape, bos_token_id=None, eos_token_id=None)))

    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert [file.name for file in files] == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    for file in files:
        held = load_file(file)
        assert len(held) == 1 or sum(tensor.nbytes for tensor in held.values()) <= limit
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in engine.own.values())
    assert index["weight_map"].keys() == tensor_shapes(engine.shape).keys()

    tokens = torch.arange(20)[None]
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    ours = engine_of()
    ours.import_weights(tmp_path)
    with torch.no_grad():
        expected = engine.model(tokens)
        torch.testing.assert_close(theirs(input_ids=tokens).logits, expected, rtol=0, atol=1e-5)
        assert torch.equal(ours.model(tokens), expected)


def test_shards_of_transformers_are_read(engine_of: EngineOf, engine: TorchEngine, tmp_path: Path) -> None:
    engine.export_weights(tmp_path, "fp32")
    (tmp_path / "config.json").write_text(json.dumps(to_hugging_face(engine.shape, bos_token_id=None, eos_token_id=None)))
    AutoModelForCausalLM.from_pretrained(tmp_path).save_pretrained(tmp_path / "theirs", max_shard_size="50KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    other = engine_of("train.seed=9")
    other.import_weights(tmp_path / "theirs")
    for name, tensor in engine.own.items():
        assert torch.equal(tensor, other.own[name]), name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_weight_is_named(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path, value: float) -> None:
    tensors[UP][3, 4] = value
    save_file(tensors, tmp_path / SINGLE)
    assert f"{UP} holds NaN or infinity" in refusal(engine, tmp_path)


def test_missing_tensors_are_named(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    del tensors[UP], tensors["lm_head.weight"]
    save_file(tensors, tmp_path / SINGLE)
    assert f"2 missing (lm_head.weight, {UP})" in refusal(engine, tmp_path)


def test_unknown_are_named(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """A bias that the configuration does not mention would otherwise be dropped in silence."""
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(48)
    save_file(tensors, tmp_path / SINGLE)
    text = refusal(engine, tmp_path)
    assert "1 unknown (model.layers.0.self_attn.q_proj.bias)" in text and "missing" not in text


def test_missing_and_unknown_together_name_the_first_three(
    engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    save_file({f"transformer.{name}": tensor for name, tensor in tensors.items()}, tmp_path / SINGLE)
    text = refusal(engine, tmp_path)
    assert f"{len(tensors)} missing (lm_head.weight, model.embed_tokens.weight, model.layers.0.input_layernorm.weight)" in text
    assert f"{len(tensors)} unknown (transformer.lm_head.weight, " in text


def test_a_wrong_shape_is_named_with_both(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(97, 48)
    save_file(tensors, tmp_path / SINGLE)
    assert "model.embed_tokens.weight has shape (97, 48), the model needs (96, 48)" in refusal(engine, tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool])
def test_quantized_weights_are_refused(
    engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path, dtype: torch.dtype
) -> None:
    """Integers would otherwise be taken for the weights themselves, without their scales."""
    tensors[UP] = tensors[UP].to(dtype)
    save_file(tensors, tmp_path / SINGLE)
    assert f"{UP} is {str(dtype).removeprefix('torch.')}, so quantized" in refusal(engine, tmp_path)


def test_old_rotary_buffers_are_passed_over(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """Checkpoints from transformers before 4.32 carry them; they are computed, not learnt."""
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, tmp_path / SINGLE)
    engine.import_weights(tmp_path)


@pytest.mark.parametrize("names", [("lm_head.weight",), ("lm_head.weight", "model.embed_tokens.weight")])
def test_a_tied_tensor_may_be_stored_under_either_name(
    engine_of: EngineOf, randomise: Randomise, tmp_path: Path, names: Any
) -> None:
    engine = engine_of(tied_embeddings=True)
    randomise(engine.model)
    tensors = {name: tensor.detach().clone() for name, tensor in engine.own.items()}
    embedding = tensors.pop("model.embed_tokens.weight")
    save_file(tensors | {name: embedding.clone() for name in names}, tmp_path / SINGLE)
    other = engine_of("train.seed=9", tied_embeddings=True)
    other.import_weights(tmp_path)
    assert torch.equal(other.model.lm_head.weight, embedding)
    assert torch.equal(other.model.model.embed_tokens.weight, embedding)


def test_a_tied_model_refuses_an_output_embedding_of_its_own(
    engine_of: EngineOf, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / SINGLE)
    text = refusal(engine_of(tied_embeddings=True), tmp_path)
    assert "model.embed_tokens.weight differs from lm_head.weight" in text and "tie_word_embeddings to false" in text


@pytest.mark.parametrize("keep", [0, 5, 400, -1])
def test_a_truncated_file_is_named(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path, keep: int) -> None:
    save_file(tensors, tmp_path / SINGLE)
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[:keep])
    assert f"{tmp_path / SINGLE}: not a complete safetensors file" in refusal(engine, tmp_path)


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("opened"),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_unopened(
    engine: TorchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(_Payload()))
    assert "save_pretrained(folder, safe_serialization=True)" in refusal(engine, tmp_path)
    assert not (tmp_path / "opened").exists()


def test_a_folder_without_weights(engine: TorchEngine, tmp_path: Path) -> None:
    assert f"no {SINGLE} and no {INDEX} in it" in refusal(engine, tmp_path)
    assert f"no {SINGLE}" in refusal(engine, tmp_path / "absent")


@pytest.mark.parametrize("place", ["../outside.safetensors", "/outside.safetensors", "sub/outside.safetensors"])
def test_an_index_does_not_lead_outside_the_folder(
    engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path, place: str
) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for there in (tmp_path, folder / "sub"):
        save_file(tensors, there / "outside.safetensors")  # the file is there and whole: only its place is wrong
    place = str(tmp_path / "outside.safetensors") if place.startswith("/") else place
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, place)}))
    assert f"{place!r} points outside the folder" in refusal(engine, folder)


@pytest.mark.parametrize("place", ["absent.safetensors", "..", "."])
def test_an_index_that_names_an_absent_file(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path, place: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, place)}))
    text = refusal(engine, tmp_path)
    assert f"{place} is missing from the folder" in text or f"{place!r} points outside" in text


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": 5, "b": "x"}}', "\udcff", "5"],
)
def test_an_index_that_is_none(engine: TorchEngine, tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert f"{tmp_path / INDEX}: not an index of safetensors files" in refusal(engine, tmp_path)


def test_an_index_that_names_too_little(engine: TorchEngine, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    save_file({UP: tensors[UP]}, tmp_path / "part.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {UP: "part.safetensors"}}))
    assert f"{len(tensors) - 1} missing" in refusal(engine, tmp_path)


def test_fp16_refuses_what_it_cannot_hold(engine: TorchEngine, tmp_path: Path) -> None:
    """65504 is the largest fp16; a larger weight would be saved as infinity."""
    with torch.no_grad():
        engine.own[UP][0, 0] = 70_000.0
    with pytest.raises(UserError, match=rf"{UP} holds values above 65504.*bf16 or fp32"):
        engine.export_weights(tmp_path, "fp16")
    engine.export_weights(tmp_path, "bf16")


def test_a_full_disk_is_an_os_error(engine: TorchEngine, tmp_path: Path) -> None:
    """Callers tell a failed write from a fault of theirs by OSError; the library has an error of its own."""
    with file_size_limit(50_000), pytest.raises(OSError, match=r"model\.safetensors") as caught:
        engine.export_weights(tmp_path, "fp32")
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(FileNotFoundError):
        write_file({"a": torch.zeros(3)}, tmp_path / "absent" / "a.safetensors")


def test_a_checkpoint_that_meets_a_full_disk_is_an_os_error(
    engine_of: EngineOf, batch_of: Callable[..., Any], tmp_path: Path
) -> None:
    """The optimizer's file is the larger one: the weights still fit here, the moments do not."""
    engine = engine_of()
    engine.train_step(batch_of(), 1e-3)
    bytes_of_weights = sum(tensor.nbytes for tensor in engine.own.values())
    with file_size_limit(int(1.5 * bytes_of_weights)), pytest.raises(OSError, match=r"optimizer-00000\.safetensors") as caught:
        engine.save(tmp_path)
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / SINGLE).is_file()

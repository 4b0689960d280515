"""GGUF files that danlu writes are the same model in transformers, and come back into danlu."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from danlu.data import tokenizer as tokenizers
from danlu.engines.torch.decoder import CausalLM
from danlu.errors import UserError
from danlu.model.families import to_hugging_face
from danlu.model.shape import ModelShape, RopeScaling
from danlu.pretrained.folder import import_model
from danlu.pretrained.gguf_write import write_gguf

BASE: dict[str, Any] = {"vocab_size": 320, "layers": 2, "hidden_size": 64, "ffn_size": 96, "heads": 4, "kv_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tied_embeddings": True},
    "llama3": {
        "rope_theta": 5e5,
        "rope_scaling": RopeScaling(kind="llama3", factor=8.0, original_max_sequence_length=8192),
    },
    "qwen2": {"family": "qwen2", "qkv_bias": True},
    "ernie4_5": {"family": "ernie4_5", "tied_embeddings": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_size": 128},
}
TEXT = "In 1234, isn't the 炉 hot?\n\n  yes"


def weights(shape: ModelShape) -> dict[str, np.ndarray[Any, Any]]:
    from danlu.model.families import tensor_shapes

    random = np.random.default_rng(3)
    return {
        name: (0.05 * random.standard_normal(size) + (name.endswith("norm.weight"))).astype(np.float16).astype(np.float32)
        for name, size in tensor_shapes(shape).items()
    }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    settings = {"pad_token": tokenizers.PAD, "chat_template": "{{ messages }}"}
    tokenizers.save(folder, tokenizers.train([TEXT] * 20, 310), None, tokenizers.END, settings)
    return folder


def our_logits(shape: ModelShape, state: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
    model = CausalLM(shape)
    model.model.set_frequencies(shape)
    model.load_state_dict({name: torch.as_tensor(each) for name, each in state.items()}, strict=not shape.tied_embeddings)
    with torch.no_grad():
        return model(tokens)  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_f16_there_and_back(tokenizer: Path, tmp_path: Path, family: str) -> None:
    shape = ModelShape(**BASE | FAMILIES[family])
    state = weights(shape)
    file = tmp_path / "model.gguf"
    write_gguf(shape, state.__getitem__, tokenizer, file, "f16", "x")
    found = import_model(file, tmp_path / "back", "fp32")
    assert found == shape
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(back[name], torch.as_tensor(each)) for name, each in state.items())
    again = tokenizers.load(tmp_path / "back")
    assert again.encode(TEXT) == tokenizers.load(tokenizer).encode(TEXT) and again.end == tokenizers.END
    assert json.loads((tmp_path / "back" / tokenizers.SETTINGS).read_text())["chat_template"] == "{{ messages }}"
    if family not in ("llama3", "ernie4_5"):  # transformers reads neither the divisors of frequencies nor ERNIE out of GGUF
        from transformers import AutoModelForCausalLM, AutoTokenizer

        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
        tokens = torch.tensor([AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)(TEXT)["input_ids"]])
        with torch.no_grad():
            assert torch.allclose(our_logits(shape, state, tokens), theirs(tokens).logits, atol=1e-5)


def test_q8_0_is_what_transformers_reads(tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    shape = ModelShape(**BASE)
    file = tmp_path / "model.gguf"
    write_gguf(shape, weights(shape).__getitem__, tokenizer, file, "q8_0", "x")
    import_model(file, tmp_path / "back", "fp32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).state_dict()
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.allclose(back[name], theirs[name], atol=1e-7) for name in back)
    assert max(float(abs(back[name].numpy() - each).max()) for name, each in weights(shape).items()) < 3e-3


def test_types_of_the_copy(tokenizer: Path, tmp_path: Path) -> None:
    shape = ModelShape(**BASE)
    file = tmp_path / "model.gguf"
    write_gguf(shape, weights(shape).__getitem__, tokenizer, file, "f16", "x")
    for dtype, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        import_model(file, tmp_path / dtype, dtype)
        for name, each in load_file(tmp_path / dtype / "model.safetensors").items():
            assert torch.equal(each, torch.as_tensor(weights(shape)[name]).to(kind)), name


def test_a_folder_is_taken_over(tokenizer: Path, tmp_path: Path) -> None:
    shape = ModelShape(**BASE)
    source = tmp_path / "source"
    source.mkdir()
    for name in (tokenizers.FILE, tokenizers.SETTINGS):
        (source / name).write_bytes((tokenizer / name).read_bytes())
    (source / "config.json").write_text(json.dumps(to_hugging_face(shape, bos_token_id=None, eos_token_id=None)))
    (source / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    state = {name: torch.as_tensor(each) for name, each in weights(shape).items()}
    save_file(state, source / "model.safetensors")
    assert import_model(source, tmp_path / "made", "fp32") == shape
    assert json.loads((tmp_path / "made" / "generation_config.json").read_text()) == {"eos_token_id": [1, 7]}
    assert all(torch.equal(each, state[name]) for name, each in load_file(tmp_path / "made" / "model.safetensors").items())
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled weights are not read"):
        import_model(source, tmp_path / "other", "fp32")


def test_what_is_no_model(tokenizer: Path, tmp_path: Path) -> None:
    shape = ModelShape(**BASE)
    file = tmp_path / "model.gguf"
    write_gguf(shape, weights(shape).__getitem__, tokenizer, file, "f16", "x")
    data = file.read_bytes()
    faults = {
        "text.gguf": (b"not a model at all, only text", "no complete GGUF file"),
        "short.gguf": (data[: len(data) // 2], "no complete GGUF file"),
        "other.gguf": (data.replace(b"llama", b"lloma"), "architecture 'lloma' is none that danlu has"),
        "name.gguf": (data.replace(b"blk.1.ffn_up", b"blk.1.ffn_op"), "1 missing \\(blk.1.ffn_up.weight\\); 1 unknown"),
    }
    for name, (content, said) in faults.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=said):
            import_model(tmp_path / name, tmp_path / "made", "fp32")
        assert not (tmp_path / "made").exists()
    with pytest.raises(UserError, match="no such file"):
        import_model(tmp_path / "absent", tmp_path / "made", "fp32")
    with pytest.raises(UserError, match="pickled"):
        import_model(tmp_path / "x.bin", tmp_path / "made", "fp32")
    with pytest.raises(UserError, match="exists"):
        import_model(file, tmp_path, "fp32")

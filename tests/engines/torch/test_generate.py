"""Generation against transformers, against recomputation without a cache, and against the distribution it draws from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from danlu.engines.base import Sampling
from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.generate import KeyValueCache
from danlu.errors import UserError
from danlu.model.families import to_hugging_face

EngineOf = Callable[..., TorchEngine]
Randomise = Callable[[Any], None]

GREEDY = Sampling(max_tokens=50, temperature=0.0, top_k=0, top_p=1.0, seed=0)
PROMPT = [44, 15, 53, 0, 67]
LONG = list(range(7, 67, 3))
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tied_embeddings": True},
    "mistral window": {"family": "mistral", "sliding_window": 7},
    "qwen2 window after one layer": {"family": "qwen2", "qkv_bias": True, "sliding_window": 7, "full_attention_layers": 1},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_size": 16},
}


@pytest.fixture
def engine(engine_of: EngineOf, randomise: Randomise) -> TorchEngine:
    made = engine_of()
    randomise(made.model)
    return made


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "past the window"])
@pytest.mark.parametrize("name", SHAPES)
def test_fifty_greedy_tokens_are_those_of_transformers(
    name: str, prompt: list[int], engine_of: EngineOf, randomise: Randomise, tmp_path: Path
) -> None:
    engine = engine_of(**SHAPES[name])
    randomise(engine.model)
    engine.export_weights(tmp_path, "fp32")
    (tmp_path / "config.json").write_text(json.dumps(to_hugging_face(engine.shape, bos_token_id=None, eos_token_id=None)))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    given = torch.tensor([prompt])
    expected = theirs.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=50, pad_token_id=0)
    new = expected[0, len(prompt) :].tolist()
    assert len(set(new)) > 5  # a model that repeats one token would agree with much
    assert list(engine.generate(prompt, GREEDY, end_id=None)) == new


@pytest.mark.parametrize("name", SHAPES)
def test_the_cache_gives_the_logits_of_a_recomputation(name: str, engine_of: EngineOf, randomise: Randomise) -> None:
    """Whatever the pieces: a prompt at once, tokens one by one, several after others."""
    engine = engine_of(**SHAPES[name])
    randomise(engine.model)
    tokens = torch.randint(0, 96, (1, 30), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        whole = engine.model(tokens)
        for pieces in ([30], [1] * 30, [10, 1, 1, 6, 12], [3, 27]):
            cache = KeyValueCache(engine.shape, 30, torch.device("cpu"))
            parts = torch.cat([engine.model(piece, cache=cache) for piece in tokens.split(pieces, dim=1)], dim=1)
            assert cache.length == 30
            torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)


def test_greedy_equals_full_recomputation(engine: TorchEngine) -> None:
    tokens = list(PROMPT)
    for token in engine.generate(PROMPT, GREEDY, end_id=None):
        with torch.no_grad():
            assert token == int(engine.model(torch.tensor([tokens]))[0, -1].argmax())
        tokens.append(token)
    assert len(tokens) == len(PROMPT) + 50


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, temperature=1.0, top_k=1),
        replace(GREEDY, temperature=1.0, top_p=1e-9),
        replace(GREEDY, temperature=1e-6),
        replace(GREEDY, temperature=1e-310),
    ],
    ids=["top_k 1", "tiny top_p", "tiny temperature", "temperature below the normal numbers"],
)
def test_what_amounts_to_greedy(engine: TorchEngine, sampling: Sampling) -> None:
    assert list(engine.generate(PROMPT, sampling, None)) == list(engine.generate(PROMPT, GREEDY, None))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "left"),
    [(1.0, 0, 1.0, 8), (0.5, 0, 1.0, 8), (2.0, 3, 1.0, 3), (1.0, 0, 0.7, 3), (1.5, 5, 0.55, 2), (1.0, 99, 1.0, 8)],
)
def test_draws_follow_the_softmax(
    engine_of: EngineOf, randomise: Randomise, temperature: float, top_k: int, top_p: float, left: int
) -> None:
    """A thousand first tokens over a vocabulary of 8, against the filters of transformers in that order: chi-squared."""
    engine = engine_of(vocab_size=8, layers=1, hidden_size=16, heads=2, kv_heads=1)
    randomise(engine.model)
    prompt, draws = [5, 2, 7], 1000
    with torch.no_grad():
        scores = engine.model(torch.tensor([prompt]))[:, -1].double() * 2
        engine.model.lm_head.weight.mul_(2)  # far enough from uniform
    scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    expected = torch.softmax(scores, -1)[0]
    kept = [token for token in range(8) if expected[token] > 0]
    assert len(kept) == left

    counts: Counter[int] = Counter()
    for seed in range(draws):
        sampling = Sampling(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        counts.update(engine.generate(prompt, sampling, end_id=None))
    assert sum(counts.values()) == draws
    assert set(counts) <= set(kept)
    deviation = sum((counts[token] - draws * float(expected[token])) ** 2 / (draws * float(expected[token])) for token in kept)
    assert deviation < {1: 15.1, 2: 18.4, 7: 29.9}[left - 1]  # the 99.99 % quantile at so many degrees of freedom


def test_a_seed_repeats_and_another_differs(engine: TorchEngine) -> None:
    sampling = replace(GREEDY, temperature=1.0)
    torch.manual_seed(1)
    first = list(engine.generate(PROMPT, sampling, None))
    torch.manual_seed(2)
    assert list(engine.generate(PROMPT, sampling, None)) == first
    assert list(engine.generate(PROMPT, replace(sampling, seed=1), None)) != first


def test_sampling_leaves_the_training_random_state_alone(engine: TorchEngine) -> None:
    before = torch.get_rng_state()
    list(engine.generate(PROMPT, replace(GREEDY, temperature=1.0), None))
    assert torch.equal(torch.get_rng_state(), before)


def test_it_stops_before_the_end_token(engine: TorchEngine) -> None:
    free = list(engine.generate(PROMPT, GREEDY, None))
    end = free[10]
    assert list(engine.generate(PROMPT, GREEDY, end)) == free[: free.index(end)]


def test_it_stops_where_the_context_is_full(engine: TorchEngine) -> None:
    """128 positions: a prompt of 120 leaves room for 8, and one of 127 for one."""
    prompt = [token % 96 for token in range(127)]
    assert len(list(engine.generate(prompt[:120], GREEDY, None))) == 8
    assert len(list(engine.generate(prompt, GREEDY, None))) == 1


@pytest.mark.parametrize("length", [128, 500])
def test_a_prompt_that_fills_the_context_is_refused(engine: TorchEngine, length: int) -> None:
    with pytest.raises(UserError, match=f"the prompt has {length} tokens; the model's context holds 128, .*shorten the prompt"):
        engine.generate([1] * length, GREEDY, None)


def test_an_empty_prompt_is_refused(engine: TorchEngine) -> None:
    with pytest.raises(UserError, match=r"the prompt is empty.*give a prompt"):
        engine.generate([], GREEDY, None)


def test_tokens_come_one_by_one_and_leave_training_as_it_was(engine: TorchEngine) -> None:
    """Between tokens gradients are on; afterwards there are none."""
    stream = engine.generate(PROMPT, GREEDY, None)
    next(stream)
    assert torch.is_grad_enabled()
    assert engine.model(torch.tensor([PROMPT])).requires_grad
    next(stream)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in engine.model.parameters())


def test_a_half_precision_engine_generates_in_fp32(engine: TorchEngine, engine_of: EngineOf, tmp_path: Path) -> None:
    engine.export_weights(tmp_path, "fp32")
    other = engine_of("train.precision=bf16")
    other.import_weights(tmp_path)
    assert list(other.generate(PROMPT, GREEDY, None)) == list(engine.generate(PROMPT, GREEDY, None))

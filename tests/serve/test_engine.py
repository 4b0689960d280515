"""The engine against transformers, and against itself in other company."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sequences import finish, sequence, tokens_of
from transformers import AutoModelForCausalLM

from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.model.families import to_hugging_face
from danlu.serve.engine import Engine
from danlu.serve.torch_executor import TorchExecutor

ExecutorOf = Callable[..., TorchExecutor]
SHAPES: dict[str, dict[str, Any]] = {
    "llama tied": {"tied_embeddings": True},
    "mistral window": {"family": "mistral", "sliding_window": 7},
    "qwen2 window after one layer": {"family": "qwen2", "qkv_bias": True, "sliding_window": 20, "full_attention_layers": 1},
    "ernie4_5": {"family": "ernie4_5", "tied_embeddings": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_size": 32},
}


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_tokens_are_those_of_transformers(
    name: str, executor_of: ExecutorOf, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    executor = executor_of(**SHAPES[name])
    save_file(dict(executor.weights), tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = to_hugging_face(executor.shape, bos_token_id=None, eos_token_id=None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    prompts = [[44, 15, 53, 0, 67], list(range(7, 47))]
    engine = Engine(executor, step_tokens=24)
    made = finish(engine, *(sequence(tokenizer, prompt, max_tokens=40) for prompt in prompts))
    for prompt, outputs in zip(prompts, made, strict=True):
        given = torch.tensor([prompt])
        expected = theirs.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=40, pad_token_id=0
        )
        assert len(set(tokens_of(outputs))) > 5  # a model that repeats one token would agree with much
        assert tokens_of(outputs) == expected[0, len(prompt) :].tolist()


def test_200_interleavings_change_no_bit(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    """Alone with an empty cache, or in whatever company, order, cutting, cache state and shortage: the same logprobs exactly."""
    draws = random.Random(5)
    common = [draws.randrange(256) for _ in range(45)]
    requests = []
    for number in range(8):
        prompt = common[: draws.choice([0, 13, 32, 45])] + [draws.randrange(256) for _ in range(draws.randint(1, 40))]
        prompt += prompt[-12:-6]  # something that looks as if it were repeated
        temperature = draws.choice([0.0, 1.0])
        requests.append((prompt, {"max_tokens": draws.randint(1, 14), "temperature": temperature, "seed": number, "logprobs": 2}))
    executor = executor_of(blocks=64)
    alone = [finish(Engine(executor), sequence(tokenizer, prompt, **settings))[0] for prompt, settings in requests]
    seen = {"preemptions": 0, "cached_tokens": 0}
    for _ in range(25):
        executor.blocks = draws.choice([7, 9, 12, 64])
        guesses = draws.choice([0, 1, 7])
        engine = Engine(executor, draws.choice([1, 5, 16, 40, 256]), draws.choice([1, 3, 8]), guesses)
        chosen = [number for number in range(8) if len(requests[number][0]) + 14 <= executor.blocks * 16]
        for at in range(0, 8, 4):  # the second lot finds the cache as the first has left it
            lot = draws.choices(chosen, k=4)
            made = finish(engine, *(sequence(tokenizer, requests[number][0], **requests[number][1]) for number in lot))
            assert made == [alone[number] for number in lot], at
        for name in seen:
            seen[name] += engine.counts[name]
    assert all(seen.values()), seen


def test_a_shared_prefix_is_computed_once(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    engine = Engine(executor_of())
    prefix = list(range(100))
    finish(engine, sequence(tokenizer, [*prefix, *[7] * 20], max_tokens=1))
    again = sequence(tokenizer, [*prefix, 9, 9], max_tokens=1)
    computed = engine.counts["computed_tokens"]
    finish(engine, again)
    assert again.cached == 100  # six blocks shared, and four tokens of the seventh copied
    assert engine.counts["computed_tokens"] - computed == 2


def test_a_cancelled_sequence_leaves_no_block(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    engine = Engine(executor_of(), running=1)
    first, second = (sequence(tokenizer, [5] * 40) for _ in range(2))
    engine.add(first)
    engine.add(second)
    engine.step()
    assert engine.cache.held
    engine.cancel(second)
    engine.cancel(first)
    assert not engine.busy and engine.cache.held == 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "the prompt is empty"), ([1] * 256, "has 256 tokens; .* at most 256"), ([300], "not in 0 to 299")],
)
def test_prompts_that_are_refused(executor_of: ExecutorOf, tokenizer: Tokenizer, prompt: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Engine(executor_of()).add(sequence(tokenizer, prompt))


def test_it_ends_where_the_context_is_full(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    (made,) = finish(Engine(executor_of()), sequence(tokenizer, [1] * 250, max_tokens=100))
    assert len(tokens_of(made)) == 6
    assert made[-1].reason == "length"


def test_right_guesses_save_steps_and_change_nothing(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    """A window of one token makes the next one depend on the last alone, so that greedy text soon repeats itself."""
    executor = executor_of(family="mistral", sliding_window=1)
    made, steps = [], []
    for guesses in (0, 4):
        engine = Engine(executor, guesses=guesses)
        each = sequence(tokenizer, [5, 6], max_tokens=120, logprobs=1)
        engine.add(each)
        outputs, count = [], 0
        while engine.busy:
            outputs += [output for _, output in engine.step()]
            count += 1
        made.append(outputs)
        steps.append(count)
        assert bool(engine.counts["guessed_tokens"]) == bool(guesses) and engine.cache.held == 0
    assert made[0] == made[1] and steps[0] == 120
    assert steps[1] < 80

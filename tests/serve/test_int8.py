"""The 8-bit executor against float arithmetic, and against itself in other company."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sequences import finish, sequence

from danlu.compress.plan import Plan
from danlu.compress.quantize import quantize
from danlu.compress.stored import restored
from danlu.data.tokenizer import Tokenizer
from danlu.serve.engine import Engine
from danlu.serve.executor import BLOCK, Piece
from danlu.serve.int8 import product as kernels
from danlu.serve.int8.executor import Int8Executor, supported
from danlu.serve.int8.tile import GROUP, ROWS
from danlu.serve.sequence import Output
from danlu.serve.torch_executor import TorchExecutor

ExecutorOf = Callable[..., TorchExecutor]
pytestmark = pytest.mark.skipif(not supported(), reason="this processor has no AVX-512 VNNI")
SHAPES: dict[str, dict[str, Any]] = {
    "tied, odd sizes": {
        "tied_embeddings": True,
        "hidden_size": 80,
        "ffn_size": 100,
        "heads": 5,
        "kv_heads": 1,
        "vocab_size": 301,
    },
    "window": {"family": "mistral", "sliding_window": 7},
    "biases": {"family": "qwen2", "qkv_bias": True},
    "interleaved rotation": {"family": "ernie4_5", "tied_embeddings": True},
    "normalised heads": {"family": "qwen3", "qk_norm": True, "head_size": 32},
}


def int8_of(executor: TorchExecutor, threads: int = 1) -> Int8Executor:
    made = quantize(executor.shape, {name: tensor.numpy() for name, tensor in executor.weights.items()}, Plan())
    return Int8Executor(executor.shape, made.arrays, 64, threads)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 64), (33, 100), (160, 192)])
def test_the_product_is_exact(rows: int, outputs: int, inputs: int) -> None:
    """Of the quantized numbers, against 64-bit floats; extremes included, and whoever computes which outputs."""
    random_state = np.random.default_rng(rows)
    weight = random_state.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    weight[0] = 127
    x = random_state.normal(size=(rows, inputs)).astype(np.float32)
    x[0] = -5
    groups, padded = -(-inputs // GROUP), -(-outputs // 32) * 32
    rounded, out = kernels.room(rows, inputs), np.empty((rows, padded), np.float32)
    for row in range(rows):
        kernels.quantize(np.pad(x[row], (0, groups * GROUP - inputs)), row, groups, rounded)
    weight_scales, bias = np.zeros(padded, np.float32), np.zeros(padded, np.float32)
    weight_scales[:outputs], bias[:outputs] = random_state.random(outputs), random_state.normal(size=outputs)
    for pair in range(padded // 32):
        kernels.product(rounded, rows, kernels.pack(weight), weight_scales, bias, out, pair, pair + 1)
    q, scales = rounded.q.reshape(-1, groups, ROWS, GROUP), rounded.scales.reshape(-1, groups, ROWS, 1)
    near = (q.astype(np.float64) * scales).transpose(0, 2, 1, 3).reshape(-1, groups * GROUP)[:rows, :inputs]
    assert np.abs(near - x).max() <= scales.max() / 2 * 1.001
    expected = near @ weight.T * weight_scales[:outputs] + bias[:outputs]
    np.testing.assert_allclose(out[:, :outputs], expected, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_near_those_of_the_same_weights_in_float(name: str, executor_of: ExecutorOf) -> None:
    plain = executor_of(**SHAPES[name])
    executor = int8_of(plain)
    arrays = quantize(plain.shape, {key: tensor.numpy() for key, tensor in plain.weights.items()}, Plan()).arrays
    same = TorchExecutor(plain.shape, {key: torch.tensor(array) for key, array in restored(arrays).items()}, 64)
    tokens = [number * 37 % 296 for number in range(40)]
    pieces = [Piece(tokens, 0, [5, 2, 9], 40)]
    ours, theirs = executor.run(pieces), same.run(pieces)
    assert ours.shape == theirs.shape
    error = np.sqrt(((ours - theirs) ** 2).mean() / (theirs**2).mean())
    assert error < 0.06  # 8 bits of activations; a wrong head, window or rotation is off by 0.5 and more


def test_no_bit_depends_on_the_company(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    """As for float32: alone, or in other batches, cuttings and shortages, with the cache warm or cold, and in more threads."""
    draws = random.Random(3)
    plain = executor_of(heads=4, hidden_size=128)
    executors = [int8_of(plain, threads) for threads in (1, 2, 3)]
    common = [draws.randrange(256) for _ in range(40)]
    prompts = [
        common[: draws.choice([0, 21, 40])] + [draws.randrange(256) for _ in range(draws.randint(1, 30))] for _ in range(6)
    ]

    def made(engine: Engine, numbers: list[int]) -> list[list[Output]]:
        return finish(engine, *(sequence(tokenizer, prompts[number], max_tokens=12, logprobs=1) for number in numbers))

    alone = [made(Engine(executors[0]), [number])[0] for number in range(6)]
    for turn in range(12):
        executor = executors[turn % 3]
        executor.blocks = draws.choice([6, 8, 64])
        engine = Engine(executor, step_tokens=draws.choice([1, 5, 40, 256]), running=draws.choice([1, 3, 8]))
        for _ in range(2):
            lot = draws.choices(range(6), k=4)
            assert made(engine, lot) == [alone[number] for number in lot]


@pytest.mark.parametrize(("size", "window"), [(8, 0), (20, 5), (64, 0), (64, 17)])
def test_attention_is_that_of_float64(size: int, window: int) -> None:
    from danlu.serve.int8.attention import attend

    draw = np.random.default_rng(size)
    heads, groups, blocks = 6, 2, 12
    keys = draw.normal(size=(blocks, groups, size, BLOCK)).astype(np.float32)
    values = draw.normal(size=(blocks, groups, BLOCK, size)).astype(np.float32)
    positions, owners = np.array([0, 15, 16, 37, 90], np.int32), np.array([0, 0, 1, 1, 0], np.int32)
    tables = draw.permutation(blocks).astype(np.int32).reshape(2, -1)
    x = draw.normal(size=(len(positions), heads * size + 5)).astype(np.float32) * 4
    out = np.full((len(positions), heads * size), np.nan, np.float32)
    space = np.empty(blocks * BLOCK, np.float32)
    for row, (position, owner) in enumerate(zip(positions, owners, strict=True)):
        table = tables[owner]
        for group in range(groups):
            attend(x[row], heads, group, keys, values, position, table, window, space, out[row])
        first = max(0, position + 1 - window) if window else 0
        for head in range(heads):
            group = head // (heads // groups)
            key_lk = keys[table, group].transpose(0, 2, 1).reshape(-1, size)[first : position + 1].astype(np.float64)
            value_lk = values[table, group].reshape(-1, size)[first : position + 1].astype(np.float64)
            scores = key_lk @ x[row, head * size : (head + 1) * size].astype(np.float64) / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            expected = weights @ value_lk / weights.sum()
            np.testing.assert_allclose(out[row, head * size : (head + 1) * size], expected, rtol=2e-5, atol=2e-6)

"""The executor over 8-bit weights: packed once, then every step runs compiled kernels over its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape
from danlu.serve.executor import BLOCK, Logits, Piece
from danlu.serve.int8 import layer as kernels
from danlu.serve.int8.attention import attend
from danlu.serve.int8.product import GROUP, Floats, pack, product, quantize

Arrays = Mapping[str, NDArray[Any]]
NONE: Floats = np.empty(0, np.float32)


def supported() -> bool:
    """Does this processor have the instructions? (AVX-512 VNNI)"""
    import llvmlite.binding

    return bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni"))


class _Linear:
    """One projection, or several of the same input as one."""

    def __init__(self, arrays: Arrays, names: Sequence[str]) -> None:
        weight = np.concatenate([arrays[f"{name}.weight"] for name in names])
        self.outputs, inputs = weight.shape
        self.groups = -(-inputs // GROUP)
        self.packed = pack(weight)
        self.padded = -(-self.outputs // 32) * 32
        self.scales = np.zeros(self.padded, np.float32)
        self.scales[: self.outputs] = np.concatenate([arrays[f"{name}.weight_scale"].ravel() for name in names])
        found = [arrays.get(f"{name}.bias") for name in names]
        self.bias = NONE
        if any(bias is not None for bias in found):
            sizes = [len(arrays[f"{name}.weight"]) for name in names]
            self.bias = np.concatenate(
                [np.zeros(size, np.float32) if bias is None else bias for bias, size in zip(found, sizes, strict=True)]
            )

    def __call__(self, x_nd: Floats) -> Floats:
        """Rows (n, i) to (n, o), the outputs filled up to a multiple of 32."""
        n = len(x_nd)
        q = np.zeros((n, self.groups * GROUP), np.int8)
        scales, sums = np.empty((n, self.groups), np.float32), np.empty((n, self.groups), np.int32)
        quantize(x_nd, q, scales, sums)
        out = np.empty((n, self.padded), np.float32)
        product(q, scales, sums, self.packed, self.scales, out)
        kernels.add_bias(out, self.bias)
        return out


class _Layer(NamedTuple):
    before: Floats
    qkv: _Linear
    q_norm: Floats
    k_norm: Floats
    output: _Linear
    after: Floats
    gate_up: _Linear
    down: _Linear
    window: int
    keys: Floats
    values: Floats


class Int8Executor:
    """See `danlu.serve.executor.Executor`. ``arrays`` as `danlu.compress.stored.read` gives them."""

    def __init__(self, shape: ModelShape, arrays: Arrays, blocks: int) -> None:
        self.shape, self.blocks = shape, blocks
        self.vocab_size, self.context = shape.vocab_size, shape.max_sequence_length
        self.embedding, self.embedding_scales = arrays[EMBEDDING], arrays[f"{EMBEDDING}_scale"].ravel()
        self.head = _Linear(arrays, [(EMBEDDING if shape.tied_embeddings else HEAD).removesuffix(".weight")])
        self.norm = arrays["model.norm.weight"]
        self.layers = [self._layer(arrays, number) for number in range(shape.layers)]
        self.frequencies, self.factor = frequencies(shape)

    def _layer(self, arrays: Arrays, number: int) -> _Layer:
        name, shape = f"model.layers.{number}", self.shape
        sides = self.blocks, shape.key_value_heads
        windowed = shape.sliding_window is not None and number >= shape.full_attention_layers
        return _Layer(
            arrays[f"{name}.input_layernorm.weight"],
            _Linear(arrays, [f"{name}.self_attn.{part}_proj" for part in "qkv"]),
            arrays.get(f"{name}.self_attn.q_norm.weight", NONE),
            arrays.get(f"{name}.self_attn.k_norm.weight", NONE),
            _Linear(arrays, [f"{name}.self_attn.o_proj"]),
            arrays[f"{name}.post_attention_layernorm.weight"],
            _Linear(arrays, [f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"]),
            _Linear(arrays, [f"{name}.mlp.down_proj"]),
            (shape.sliding_window or 0) if windowed else 0,
            np.zeros((*sides, shape.head_dim, BLOCK), np.float32),
            np.zeros((*sides, BLOCK, shape.head_dim), np.float32),
        )

    def copy(self, source: int, target: int) -> None:
        """See the protocol."""
        for layer in self.layers:
            layer.keys[target], layer.values[target] = layer.keys[source], layer.values[source]

    def run(self, pieces: Sequence[Piece]) -> Logits:
        """See the protocol."""
        shape, epsilon = self.shape, self.shape.norm_epsilon
        tokens = np.array([token for piece in pieces for token in piece.tokens], np.int32)
        spans = [np.arange(piece.start, piece.start + len(piece.tokens), dtype=np.int32) for piece in pieces]
        positions = np.concatenate(spans)
        owners = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece.tokens) for piece in pieces])
        tables = np.zeros((len(pieces), max(len(piece.table) for piece in pieces)), np.int32)
        for number, piece in enumerate(pieces):
            tables[number, : len(piece.table)] = piece.table
        angles = positions[:, None].astype(np.float32) * self.frequencies.astype(np.float32)
        cos, sin = np.cos(angles) * np.float32(self.factor), np.sin(angles) * np.float32(self.factor)
        n, heads, groups, size = len(tokens), shape.heads, shape.key_value_heads, shape.head_dim
        x = np.empty((n, shape.hidden_size), np.float32)
        normed, attended, gated = (
            np.empty_like(x),
            np.empty((n, heads * size), np.float32),
            np.empty((n, shape.ffn_size), np.float32),
        )
        kernels.embed(tokens, self.embedding, self.embedding_scales, x)
        for layer in self.layers:
            kernels.normalise(x, layer.before, epsilon, normed)
            qkv = layer.qkv(normed)
            kernels.turn(qkv, 0, heads, layer.q_norm, epsilon, cos, sin, shape.interleaved_rotary)
            kernels.turn(qkv, heads * size, groups, layer.k_norm, epsilon, cos, sin, shape.interleaved_rotary)
            kernels.remember_keys(qkv, heads * size, layer.keys, positions, tables, owners)
            kernels.remember_values(qkv, (heads + groups) * size, layer.values, positions, tables, owners)
            attend(qkv, heads, layer.keys, layer.values, positions, tables, owners, layer.window, attended)
            kernels.add(x, layer.output(attended))
            kernels.normalise(x, layer.after, epsilon, normed)
            kernels.gate(layer.gate_up(normed), gated)
            kernels.add(x, layer.down(gated))
        ends = np.cumsum([len(piece.tokens) for piece in pieces])
        wanted = np.concatenate([np.arange(end - piece.logits, end) for end, piece in zip(ends, pieces, strict=True)]).astype(int)
        if not len(wanted):
            return np.empty((0, self.vocab_size), np.float32)
        last = np.empty((len(wanted), shape.hidden_size), np.float32)
        kernels.normalise(x[wanted], self.norm, epsilon, last)
        return self.head(last)[:, : self.vocab_size]

"""The executor over 8-bit weights: packed once, then every step is one compiled function in all threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape
from danlu.serve.executor import BLOCK, Logits, Piece
from danlu.serve.int8.crew import Crew
from danlu.serve.int8.product import Floats, pack, room
from danlu.serve.int8.step import Batch, Linear, Room, Weights, step
from danlu.serve.int8.tile import GROUP, OUTPUTS

Arrays = Mapping[str, NDArray[Any]]


def supported() -> bool:
    """Does this processor have the instructions? (AVX-512 VNNI)"""
    import llvmlite.binding

    return bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni"))


class Int8Executor:
    """See `danlu.serve.executor.Executor`. ``arrays`` as `danlu.compress.stored.read` gives them."""

    def __init__(self, shape: ModelShape, arrays: Arrays, blocks: int, threads: int = 1) -> None:
        self.shape, self.blocks = shape, blocks
        self.vocab_size, self.context = shape.vocab_size, shape.max_sequence_length
        self.crew = Crew(threads)
        self.weights = _weights(shape, arrays)
        sides = shape.layers, blocks, shape.key_value_heads
        self.keys = np.zeros((*sides, shape.head_dim, BLOCK), np.float32)
        self.values = np.zeros((*sides, BLOCK, shape.head_dim), np.float32)
        self.frequencies, self.factor = frequencies(shape)
        self.room = self._room(1)

    def copy(self, source: int, target: int) -> None:
        """See the protocol."""
        for side in (self.keys, self.values):
            side[:, target] = side[:, source]

    def run(self, pieces: Sequence[Piece]) -> Logits:
        """See the protocol."""
        batch = self._batch(pieces)
        if len(batch.tokens) > len(self.room.x):
            self.room = self._room(len(batch.tokens))
        logits = np.empty((len(batch.wanted), self.weights.head.scales.shape[1]), np.float32)
        self.crew.run(step, self.weights, self.keys, self.values, batch, self.room, logits)
        return logits[:, : self.vocab_size]

    def _batch(self, pieces: Sequence[Piece]) -> Batch:
        spans = [np.arange(piece.start, piece.start + len(piece.tokens), dtype=np.int32) for piece in pieces]
        tables = np.zeros((len(pieces), max(len(piece.table) for piece in pieces)), np.int32)
        for number, piece in enumerate(pieces):
            tables[number, : len(piece.table)] = piece.table
        positions = np.concatenate(spans)
        angles = positions[:, None].astype(np.float32) * self.frequencies.astype(np.float32)
        ends = np.cumsum([len(piece.tokens) for piece in pieces])
        wanted = [np.arange(end - piece.logits, end, dtype=np.int32) for end, piece in zip(ends, pieces, strict=True)]
        return Batch(
            np.array([token for piece in pieces for token in piece.tokens], np.int32),
            positions,
            np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece.tokens) for piece in pieces]),
            tables,
            np.cos(angles) * np.float32(self.factor),
            np.sin(angles) * np.float32(self.factor),
            np.concatenate(wanted),
        )

    def _room(self, n: int) -> Room:
        shape, weights, threads = self.shape, self.weights, self.crew.threads
        heads = shape.heads * shape.head_dim
        longest = -(-max(shape.hidden_size, heads, shape.ffn_size) // GROUP) * GROUP
        return Room(
            x=np.empty((n, shape.hidden_size), np.float32),
            normal=room(n, shape.hidden_size),
            qkv=np.empty((n, weights.qkv.scales.shape[1]), np.float32),
            attended=np.empty((n, heads), np.float32),
            mixed=room(n, heads),
            delta=np.empty((n, weights.down.scales.shape[1]), np.float32),
            gate_up=np.empty((n, weights.gate_up.scales.shape[1]), np.float32),
            gated=room(n, shape.ffn_size),
            lines=np.empty((threads, longest), np.float32),
            scores=np.empty((threads, self.keys.shape[1] * BLOCK), np.float32),
        )


def _weights(shape: ModelShape, arrays: Arrays) -> Weights:
    def linear(*names: str) -> Linear:
        return _linear(arrays, [[f"model.layers.{number}.{name}" for name in names] for number in range(shape.layers)])

    def vectors(name: str) -> Floats:
        """(l, size), or (l, 0) where the model has none."""
        none = np.empty(0, np.float32)
        return np.stack([arrays.get(f"model.layers.{number}.{name}.weight", none) for number in range(shape.layers)])

    window = shape.sliding_window or 0
    windows = [window if number >= shape.full_attention_layers else 0 for number in range(shape.layers)]
    return Weights(
        arrays[EMBEDDING],
        arrays[f"{EMBEDDING}_scale"].ravel(),
        vectors("input_layernorm"),
        linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        vectors("self_attn.q_norm"),
        vectors("self_attn.k_norm"),
        linear("self_attn.o_proj"),
        vectors("post_attention_layernorm"),
        linear("mlp.gate_proj", "mlp.up_proj"),
        linear("mlp.down_proj"),
        arrays["model.norm.weight"],
        _linear(arrays, [[(EMBEDDING if shape.tied_embeddings else HEAD).removesuffix(".weight")]]),
        np.array(windows),
        shape.heads,
        shape.ffn_size,
        shape.norm_epsilon,
        shape.interleaved_rotary,
    )


def _linear(arrays: Arrays, layers: Sequence[Sequence[str]]) -> Linear:
    """The projections of these names, those of one layer as one."""
    packed, scales, biases = [], [], []
    for names in layers:
        weight = np.concatenate([arrays[f"{name}.weight"] for name in names])
        filling = np.zeros(-len(weight) % OUTPUTS, np.float32)
        nothing = [np.zeros(len(arrays[f"{name}.weight"]), np.float32) for name in names]
        packed.append(pack(weight))
        scales.append(np.concatenate([*(arrays[f"{name}.weight_scale"].ravel() for name in names), filling]))
        found = [arrays.get(f"{name}.bias", none) for name, none in zip(names, nothing, strict=True)]
        biases.append(np.concatenate([*found, filling]))
    return Linear(np.stack(packed), np.stack(scales), np.stack(biases))

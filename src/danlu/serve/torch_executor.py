"""The model in torch, float32: every reduction has a shape that the position alone decides, so that a token's numbers do too.

Matrix kernels are chosen by shape, and each adds in an order of its own. So rows go through the projections `ROWS` at a time,
filled up with zeros, and queries attend in tiles that begin at multiples of `BLOCK`, to all keys up to the tile's end.
Shapes: n rows, d hidden, h query heads, g key/value heads, r query heads of each, k head size, l keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from danlu.engines.torch.decoder import rotate
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape
from danlu.serve.executor import BLOCK, CacheType, Logits, Piece
from danlu.serve.torch_cache import STORES

ROWS = 16


class _Tile(NamedTuple):
    """Rows of a step, at most `BLOCK`, that are consecutive positions of one sequence within a block."""

    rows: slice
    within: slice
    """Which of the tile's positions they are."""
    start: int
    """Position of the tile's first."""
    slots: Tensor
    """Where all keys up to the tile's end are in the cache."""


class TorchExecutor:
    """See `danlu.serve.executor.Executor`."""

    def __init__(self, shape: ModelShape, weights: Mapping[str, Tensor], blocks: int, cache: CacheType = "float32") -> None:
        self.shape, self.weights, self.blocks = shape, weights, blocks
        self.vocab_size, self.context = shape.vocab_size, shape.max_sequence_length
        self.device = weights[EMBEDDING].device
        self.keys, self.values = (
            [STORES[cache](blocks * BLOCK, shape, self.device) for _ in range(shape.layers)] for _ in range(2)
        )
        inverse, self.factor = frequencies(shape)
        self.frequencies = torch.tensor(inverse, dtype=torch.float32, device=self.device)

    def copy(self, source: int, target: int) -> None:
        """See the protocol."""
        for layer in (*self.keys, *self.values):
            layer.copy(source, target)

    @torch.inference_mode()
    def run(self, pieces: Sequence[Piece]) -> Logits:
        """See the protocol."""
        count = sum(len(piece.tokens) for piece in pieces)
        tokens_n, positions_n, slots_n = (torch.zeros(-(-count // ROWS) * ROWS, dtype=torch.long) for _ in range(3))
        tiles: list[_Tile] = []
        wanted: list[int] = []
        row = 0
        for piece in pieces:
            end = row + len(piece.tokens)
            slots = (torch.tensor(piece.table)[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
            tokens_n[row:end] = torch.tensor(piece.tokens)
            positions_n[row:end] = torch.arange(piece.start, piece.start + len(piece.tokens))
            slots_n[row:end] = slots[piece.start : piece.start + len(piece.tokens)]
            tiles += _tiles(piece, row, slots.to(self.device))
            wanted += range(end - piece.logits, end)
            row = end
        x_nd = self.weights[EMBEDDING][tokens_n.to(self.device)]
        angles = positions_n.to(self.device)[:, None, None].float() * self.frequencies
        rotary = angles.cos() * self.factor, angles.sin() * self.factor
        for layer in range(self.shape.layers):
            x_nd = x_nd + self._attention(
                layer, self._norm(x_nd, f"model.layers.{layer}.input_layernorm"), rotary, slots_n, count, tiles
            )
            x_nd = x_nd + self._mlp(layer, self._norm(x_nd, f"model.layers.{layer}.post_attention_layernorm"))
        last_nd = x_nd.new_zeros(-(-len(wanted) // ROWS) * ROWS, x_nd.shape[1])
        last_nd[: len(wanted)] = x_nd[wanted]
        head = EMBEDDING if self.shape.tied_embeddings else HEAD
        logits: Logits = _linear(self._norm(last_nd, "model.norm"), self.weights[head], None)[: len(wanted)].cpu().numpy()
        return logits

    def _attention(
        self, layer: int, x_nd: Tensor, rotary: tuple[Tensor, Tensor], slots_n: Tensor, count: int, tiles: Sequence[_Tile]
    ) -> Tensor:
        shape, name = self.shape, f"model.layers.{layer}.self_attn"
        n, k = len(x_nd), shape.head_dim
        q_nhk, k_ngk, v_ngk = (self._project(x_nd, f"{name}.{part}_proj").view(n, -1, k) for part in "qkv")
        if shape.qk_norm:
            q_nhk, k_ngk = self._norm(q_nhk, f"{name}.q_norm"), self._norm(k_ngk, f"{name}.k_norm")
        q_nhk, k_ngk = (rotate(x, *rotary, shape.interleaved_rotary) for x in (q_nhk, k_ngk))
        keys, values = self.keys[layer], self.values[layer]
        place = slots_n[:count].to(self.device)
        keys.put(place, k_ngk[:count])
        values.put(place, v_ngk[:count])
        window = shape.sliding_window if layer >= shape.full_attention_layers else None
        out_nhk = torch.zeros_like(q_nhk)
        for tile in tiles:
            q_thk = q_nhk.new_zeros(BLOCK, shape.heads, k)
            q_thk[tile.within] = q_nhk[tile.rows]
            out_nhk[tile.rows] = _attend(q_thk, keys.get(tile.slots), values.get(tile.slots), tile.start, window)[tile.within]
        return self._project(out_nhk.view(n, -1), f"{name}.o_proj")

    def _mlp(self, layer: int, x_nd: Tensor) -> Tensor:
        name = f"model.layers.{layer}.mlp"
        gated = F.silu(self._project(x_nd, f"{name}.gate_proj")) * self._project(x_nd, f"{name}.up_proj")
        return self._project(gated, f"{name}.down_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return F.rms_norm(x, weight.shape, weight, self.shape.norm_epsilon)

    def _project(self, x_nd: Tensor, name: str) -> Tensor:
        return _linear(x_nd, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))


def _linear(x_nd: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    tiles = [F.linear(tile, weight, bias) for tile in torch.split(x_nd, ROWS)]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _tiles(piece: Piece, row: int, slots: Tensor) -> list[_Tile]:
    """The piece, whose first row is `row`, cut where blocks begin."""
    found, at, end = [], piece.start, piece.start + len(piece.tokens)
    while at < end:
        start = at // BLOCK * BLOCK
        stop = min(start + BLOCK, end)
        rows = slice(row + at - piece.start, row + stop - piece.start)
        found.append(_Tile(rows, slice(at - start, stop - start), start, slots[: start + BLOCK]))
        at = stop
    return found


def _attend(q_thk: Tensor, k_lgk: Tensor, v_lgk: Tensor, start: int, window: int | None) -> Tensor:
    """Attention of a tile's queries, at positions from `start` on, to keys at positions from 0 on; (t, h, k)."""
    t, h, k = q_thk.shape
    keys, groups = k_lgk.shape[:2]
    q_grtk = q_thk.view(t, groups, h // groups, k).permute(1, 2, 0, 3).reshape(groups, -1, k)
    scores = (q_grtk @ k_lgk.permute(1, 2, 0)).view(groups, h // groups, t, keys) / math.sqrt(k)
    query, key = torch.arange(start, start + t, device=q_thk.device)[:, None], torch.arange(keys, device=q_thk.device)
    seen = key <= query
    if window is not None:
        seen &= query - key < window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).view(groups, -1, keys)
    out_grtk = (weights @ v_lgk.transpose(0, 1)).view(groups, h // groups, t, k)
    return out_grtk.permute(2, 0, 1, 3).reshape(t, h, k)

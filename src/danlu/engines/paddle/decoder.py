"""The decoder of the Llama, Mistral, Qwen2, Qwen3 and ERNIE 4.5 (dense) families.

Module names are the Hugging Face tensor names. Matrices are (input, output), as paddle has them, and turned on their way to and
from a file (danlu.engines.paddle.pieces).
Shapes: b batch, t sequence, d hidden, h query heads, g key/value heads, k head size, f ffn, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from danlu.engines.paddle.dropout import Dropout
from danlu.engines.paddle.loss import linear_cross_entropy
from danlu.engines.paddle.vocabulary import VocabularyShard
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape


class Cache(Protocol):
    """Where generation keeps the keys and values of the tokens before."""

    length: int

    def extend(self, layer: int, key_btgk: Tensor, value_btgk: Tensor) -> tuple[Tensor, Tensor]:
        """Add new positions and return all of them."""


class RMSNorm(nn.Layer):
    """Root-mean-square normalisation (Zhang & Sennrich 2019), computed in FP32 whatever the input."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = self.create_parameter([size], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.epsilon)


class Attention(nn.Layer):
    """Grouped-query attention with rotary positions (Ainslie et al. 2023; Su et al. 2021)."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        query, key_value = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
        self.layer, self.head_dim = layer, shape.head_dim
        self.groups = shape.heads // shape.key_value_heads
        self.q_proj = linear(shape.hidden_size, query, shape.qkv_bias)
        self.k_proj = linear(shape.hidden_size, key_value, shape.qkv_bias)
        self.v_proj = linear(shape.hidden_size, key_value, shape.qkv_bias)
        self.o_proj = linear(query, shape.hidden_size, shape.output_bias)
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
            self.k_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
        self.qk_norm = shape.qk_norm
        self.interleaved = shape.interleaved_rotary
        self.observed: Callable[[Tensor, Tensor, Tensor | None], None] | None = None
        """Is shown the queries and keys (b, t, h or g, k), rotated, and the mask."""

    def forward(self, x_btd: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None) -> Tensor:
        q_bthk = self.q_proj(x_btd)
        b, t, _ = q_bthk.shape  # under sequence parallelism the hidden states are shorter
        q_bthk = q_bthk.reshape([b, t, -1, self.head_dim])
        k_btgk = self.k_proj(x_btd).reshape([b, t, -1, self.head_dim])
        v_btgk = self.v_proj(x_btd).reshape([b, t, -1, self.head_dim])
        if self.qk_norm:
            q_bthk, k_btgk = self.q_norm(q_bthk), self.k_norm(k_btgk)
        q_bthk, k_btgk = (rotate(each, *rotary, self.interleaved) for each in (q_bthk, k_btgk))
        if self.observed is not None:
            self.observed(q_bthk, k_btgk, mask)
        if cache is not None:
            k_btgk, v_btgk = cache.extend(self.layer, k_btgk, v_btgk)
        if self.groups > 1:
            k_btgk = _for_each_query(k_btgk, self.groups)
            v_btgk = _for_each_query(v_btgk, self.groups)
        out_bthk = F.scaled_dot_product_attention(q_bthk, k_btgk, v_btgk, mask, is_causal=mask is None and t > 1)
        return self.o_proj(out_bthk.reshape([b, t, -1]))


class MLP(nn.Layer):
    """Gated MLP, SwiGLU (Shazeer 2020)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = linear(shape.hidden_size, shape.ffn_size, shape.mlp_bias)
        self.up_proj = linear(shape.hidden_size, shape.ffn_size, shape.mlp_bias)
        self.down_proj = linear(shape.ffn_size, shape.hidden_size, shape.mlp_bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.down_proj(F.swiglu(self.gate_proj(x_btd), self.up_proj(x_btd)))


class Block(nn.Layer):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = Attention(shape, layer)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = MLP(shape)
        self.windowed = shape.sliding_window is not None and layer >= shape.full_attention_layers
        self.dropout: Dropout | None = None

    def forward(
        self,
        x_btd: Tensor,
        rotary: tuple[Tensor, Tensor],
        masks: tuple[Tensor | None, Tensor | None],
        cache: Cache | None,
        keys_bt: Tensor | None = None,
    ) -> Tensor:
        mask = masks[1] if self.windowed else masks[0]
        attended_btd = self.self_attn(self.input_layernorm(x_btd), rotary, mask, cache)
        x_btd = x_btd + _dropped(attended_btd, self.dropout, keys_bt, 0)
        return x_btd + _dropped(self.mlp(self.post_attention_layernorm(x_btd)), self.dropout, keys_bt, 1)


class Decoder(nn.Layer):
    """Tokens to the last hidden state, or a part of the way."""

    def __init__(self, shape: ModelShape, layers: range) -> None:
        super().__init__()
        # A stage of a pipeline has the embedding if it is the first one, and the norm if it is the last.
        first, last = layers.start == 0, layers.stop == shape.layers
        self.embed_tokens: Any = nn.Embedding(shape.vocab_size, shape.hidden_size) if first else None
        # By number, so that a stage's parameters keep their names.
        self.layers = nn.LayerDict({str(layer): Block(shape, layer) for layer in layers})
        self.norm: Any = RMSNorm(shape.hidden_size, shape.norm_epsilon) if last else None
        inverse, self.attention_factor = frequencies(shape)
        self.frequencies = paddle.to_tensor(inverse, dtype="float32")
        self.window = shape.sliding_window
        self.dropout: Dropout | None = None

    def set_dropout(self, dropout: Dropout) -> None:
        """Drop entries of the embedding and of what each half of a block adds, wherever sample numbers are given."""
        self.dropout = dropout
        for block in self.layers.values():
            block.dropout = dropout

    def forward(
        self,
        tokens_bt: Tensor,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
        cache: Cache | None = None,
        samples_b: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (b, t, d), after the last norm.

        tokens_bt: int64; the hidden states (b, t, d) of the stage before, where there is one.
        positions_bt: int64, 0, 1, 2, ... when absent (after the cache's, if there is one).
        documents_bt: int32 document numbers; attention stays inside a number.
        samples_b: int64 numbers of the samples in the run, from which dropout draws its masks; without them nothing is dropped.
        """
        start = cache.length if cache is not None else 0
        if positions_bt is None:
            positions_bt = paddle.arange(start, start + tokens_bt.shape[1])[None]
        t = positions_bt.shape[1]
        masks = attention_masks(start, t, documents_bt, self.window)
        x_btd = tokens_bt
        if self.embed_tokens is not None:
            x_btd = self.embed_tokens(tokens_bt)
            x_btd = _dropped(x_btd, self.dropout, self._keys(samples_b, x_btd.shape[1], 0), 0)
        rotary = self._rotary(positions_bt)
        for layer, block in self.layers.items():
            x_btd = block(x_btd, rotary, masks, cache, self._keys(samples_b, x_btd.shape[1], int(layer) + 1))
        if cache is not None:
            cache.length = start + t
        return x_btd if self.norm is None else self.norm(x_btd)

    def _keys(self, samples_b: Tensor | None, t: int, layer: int) -> Tensor | None:
        return None if self.dropout is None or samples_b is None else self.dropout.keys(samples_b, t, layer)

    def _rotary(self, positions_bt: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (b, t, 1, k/2) in FP32: angles in half precision go wrong with the position."""
        with paddle.amp.auto_cast(enable=False):
            angles = positions_bt[:, :, None, None].astype("float32") * self.frequencies
            return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


class CausalLM(nn.Layer):
    """The decoder and its output embedding, or a stage of them."""

    def __init__(self, shape: ModelShape, layers: range | None = None) -> None:
        """``layers`` are those of a stage."""
        super().__init__()
        self.model = Decoder(shape, layers or range(shape.layers))
        self.vocabulary: VocabularyShard | None = None
        """Where tensor ranks split the output embedding."""
        self.cross_entropy = linear_cross_entropy
        # Tied, the embedding (v, d) is used as it is; on its own, or apart from it, the head is a matrix (d, v) like the others.
        self.tied = shape.tied_embeddings and self.model.embed_tokens is not None
        last = self.model.norm is not None
        self.lm_head: Any = linear(shape.hidden_size, shape.vocab_size, False) if last and not self.tied else None

    @property
    def head(self) -> Tensor | None:
        """The output embedding: (d, v), or (v, d) where it is the input's; None before the last stage of a pipeline."""
        owner = self.model.embed_tokens if self.tied else self.lm_head
        return None if self.model.norm is None else owner.weight

    def forward(
        self,
        tokens_bt: Tensor,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
        cache: Cache | None = None,
        targets_bt: Tensor | None = None,
        scale: float = 1.0,
        samples_b: Tensor | None = None,
    ) -> Tensor:
        """Logits (b, t, v); with targets, scale x the summed loss without ever making all logits.

        Before the last stage of a pipeline: hidden states (b, t, d).
        """
        hidden_btd = self.model(tokens_bt, positions_bt, documents_bt, cache, samples_b)
        if (weight := self.head) is None:
            return hidden_btd
        if targets_bt is None:
            logits_btv = paddle.matmul(hidden_btd, weight, transpose_y=self.tied)
            return logits_btv if self.vocabulary is None else self.vocabulary.whole(logits_btv)
        return self.cross_entropy(hidden_btd, weight, targets_bt, scale, self.tied, self.vocabulary)


def linear(inputs: int, outputs: int, bias: bool) -> Any:
    """A projection with or without a bias."""
    return nn.Linear(inputs, outputs, bias_attr=None if bias else False)


def _dropped(x_btd: Tensor, dropout: Dropout | None, keys_bt: Tensor | None, half: int) -> Tensor:
    return x_btd if dropout is None or keys_bt is None else dropout(x_btd, keys_bt, half)


def _for_each_query(x_btgk: Tensor, groups: int) -> Tensor:
    """Each key/value head as often as query heads share it (b, t, h, k); of operators that auto-parallel follows."""
    b, t, _, k = x_btgk.shape
    return x_btgk.unsqueeze(3).expand([-1, -1, -1, groups, -1]).reshape([b, t, -1, k])


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) x weight over the last dimension, in FP32."""
    dtype = x.dtype
    x = x.astype("float32")
    return (x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight).astype(dtype)


def rotate(x_bthk: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the pairs (i, i + k/2), or (2 i, 2 i + 1), as the family's checkpoints expect; the arithmetic is FP32."""
    if interleaved:
        first, second = x_bthk.astype("float32").unflatten(-1, [-1, 2]).unbind(-1)
        return paddle.stack((first * cos - second * sin, second * cos + first * sin), axis=-1).flatten(-2).astype(x_bthk.dtype)
    first, second = x_bthk.astype("float32").chunk(2, axis=-1)
    return paddle.concat((first * cos - second * sin, second * cos + first * sin), axis=-1).astype(x_bthk.dtype)


def attention_masks(start: int, t: int, documents_bt: Tensor | None, window: int | None) -> tuple[Tensor | None, Tensor | None]:
    """(mask without, mask with the sliding window), True where a query may look; None is plain causal.

    Each is (1 or b, 1, t, start + t).
    """
    windowed = window is not None and start + t > window
    if documents_bt is None and not windowed and (start == 0 or t == 1):
        return None, None
    query = paddle.arange(start, start + t)[:, None]
    key = paddle.arange(start + t)[None, :]
    full = (key <= query)[None, None]
    if documents_bt is not None:
        full = full & (documents_bt[:, None, :, None] == documents_bt[:, None, None, :])
    return full, full & (query - key < window) if windowed and window is not None else full

"""The decoder of the Llama, Mistral, Qwen2, Qwen3 and ERNIE 4.5 (dense) families.

Module names are the Hugging Face tensor names, so that a state dict needs no translation.
Shapes: b batch, t sequence, d hidden, h query heads, g key/value heads, k head size, f ffn, v vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from danlu.engines.torch.dropout import Dropout, Keys
from danlu.engines.torch.loss import Criterion, VocabularyShard, linear_cross_entropy
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape


class Cache(Protocol):
    """Where generation keeps the keys and values of the tokens before."""

    length: int

    def extend(self, layer: int, key_bgtk: Tensor, value_bgtk: Tensor) -> tuple[Tensor, Tensor]:
        """Add new positions and return all of them."""


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang & Sennrich 2019), computed in FP32 whatever the input."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        # The output is cast once here, not again in every projection that reads it.
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon).to(_computed(x))


class Attention(nn.Module):
    """Grouped-query attention with rotary positions (Ainslie et al. 2023; Su et al. 2021)."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        query, key_value = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
        self.layer, self.head_dim = layer, shape.head_dim
        self.groups = shape.heads // shape.key_value_heads
        self.q_proj = nn.Linear(shape.hidden_size, query, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(shape.hidden_size, key_value, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(shape.hidden_size, key_value, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=shape.output_bias)
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
            self.k_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
        self.qk_norm = shape.qk_norm
        self.interleaved = shape.interleaved_rotary

    def forward(self, x_btd: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None) -> Tensor:
        b, t, _ = x_btd.shape
        q_bthk = self.q_proj(x_btd).view(b, t, -1, self.head_dim)
        k_btgk = self.k_proj(x_btd).view(b, t, -1, self.head_dim)
        v_bgtk = self.v_proj(x_btd).view(b, t, -1, self.head_dim).transpose(1, 2)
        if self.qk_norm:
            q_bthk, k_btgk = self.q_norm(q_bthk), self.k_norm(k_btgk)
        q_bhtk = rotate(q_bthk, *rotary, self.interleaved).transpose(1, 2)
        k_bgtk = rotate(k_btgk, *rotary, self.interleaved).transpose(1, 2)
        if cache is not None:
            k_bgtk, v_bgtk = cache.extend(self.layer, k_bgtk, v_bgtk)
        if self.groups > 1:
            k_bgtk = k_bgtk.repeat_interleave(self.groups, dim=1)
            v_bgtk = v_bgtk.repeat_interleave(self.groups, dim=1)
        out_bhtk = F.scaled_dot_product_attention(q_bhtk, k_bgtk, v_bgtk, attn_mask=mask, is_causal=mask is None and t > 1)
        return self.o_proj(out_bhtk.transpose(1, 2).reshape(b, t, -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Gated MLP, SwiGLU (Shazeer 2020)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(shape.ffn_size, shape.hidden_size, bias=shape.mlp_bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_btd)) * self.up_proj(x_btd))  # type: ignore[no-any-return]


class Block(nn.Module):
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


class Decoder(nn.Module):
    """Tokens to the last hidden state; as a pipeline stage, some consecutive layers of that."""

    frequencies: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens: nn.Embedding | None = nn.Embedding(shape.vocab_size, shape.hidden_size)
        # By number, so that a stage's parameters keep their names.
        self.layers = nn.ModuleDict({str(layer): Block(shape, layer) for layer in range(shape.layers)})
        self.norm: RMSNorm | None = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.register_buffer("frequencies", torch.empty(shape.head_dim // 2), persistent=False)
        self.attention_factor = 1.0
        self.window = shape.sliding_window
        self.keys: Keys | None = None
        """What dropout draws from, here or in adapters."""
        self.dropout: Dropout | None = None

    def set_dropout(self, dropout: Dropout) -> None:
        """Drop entries of the embedding and of what each half of a block adds, wherever there are keys and sample numbers."""
        self.dropout = dropout
        for block in self.layers.values():
            block.dropout = dropout  # type: ignore[assignment]

    def set_frequencies(self, shape: ModelShape) -> None:
        """Fill the rotary frequencies (they are computed, not loaded), once the module is on its device."""
        inverse, self.attention_factor = frequencies(shape)
        self.frequencies.copy_(torch.tensor(inverse))

    def forward(
        self,
        tokens_bt: Tensor,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
        cache: Cache | None = None,
        samples_b: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (b, t, d), after the last norm.

        tokens_bt: int64; a later pipeline stage gets the hidden states of the one before instead.
        positions_bt: int64, 0, 1, 2, ... when absent (after the cache's, if there is one).
        documents_bt: int32 document numbers, those in the cache first; attention stays inside a number.
        samples_b: int64 numbers of the samples in the run, from which dropout draws its masks; without them nothing is dropped.
        """
        start = cache.length if cache is not None else 0
        if positions_bt is None:
            positions_bt = torch.arange(start, start + tokens_bt.shape[1], device=tokens_bt.device)[None]
        t = positions_bt.shape[1]  # under sequence parallelism the hidden states are shorter
        x_btd = tokens_bt if self.embed_tokens is None else self.embed_tokens(tokens_bt)
        masks = attention_masks(start, t, documents_bt, self.window, x_btd)
        if self.embed_tokens is not None:
            x_btd = _dropped(x_btd, self.dropout, self._keys(samples_b, t, 0), 0)
        rotary = self._rotary(positions_bt)
        for layer, block in self.layers.items():
            x_btd = block(x_btd, rotary, masks, cache, self._keys(samples_b, t, int(layer) + 1))
        if cache is not None:
            cache.length = start + t
        return x_btd if self.norm is None else self.norm(x_btd)

    def _keys(self, samples_b: Tensor | None, t: int, layer: int) -> Tensor | None:
        return None if self.keys is None or samples_b is None else self.keys(samples_b, t, layer)

    def _rotary(self, positions_bt: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (b, t, 1, k/2) in FP32: angles in half precision go wrong with the position."""
        with torch.autocast(positions_bt.device.type, enabled=False):
            angles = positions_bt[..., None, None].float() * self.frequencies
            return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


class CausalLM(nn.Module):
    """The decoder and its output embedding; as a pipeline stage, a part of the decoder with or without either end."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head: nn.Linear | None = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.vocabulary: VocabularyShard | None = None
        self.tied = shape.tied_embeddings
        self.tie()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.frequencies.device

    def tie(self) -> None:
        """Make input and output embedding one tensor, if they are to be and are both here."""
        if self.tied and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        tokens_bt: Tensor,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
        cache: Cache | None = None,
        targets_bt: Tensor | None = None,
        scale: float = 1.0,
        samples_b: Tensor | None = None,
        criterion: Criterion | None = None,
    ) -> Tensor:
        """Logits (b, t, v); with targets, scale x the summed loss (1,) without ever making all logits.

        The loss is the cross-entropy, or another criterion.

        An early pipeline stage returns its hidden states (b, t, d).
        """
        hidden_btd = self.model(tokens_bt, positions_bt, documents_bt, cache, samples_b)
        if self.lm_head is None:
            return hidden_btd  # type: ignore[no-any-return]
        if targets_bt is None:
            return self.lm_head(hidden_btd)  # type: ignore[no-any-return]
        made = (criterion or linear_cross_entropy)(hidden_btd, self.lm_head.weight, targets_bt, scale, self.vocabulary)
        return made.reshape(-1).clone()


def _computed(x: Tensor) -> torch.dtype:
    """The precision of matrix products that read x."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _dropped(x_btd: Tensor, dropout: Dropout | None, keys_bt: Tensor | None, half: int) -> Tensor:
    return x_btd if dropout is None or keys_bt is None else dropout(x_btd, keys_bt, half)


def rotate(x_bthk: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the pairs (i, i + k/2), or (2 i, 2 i + 1), as the family's checkpoints expect; the arithmetic is FP32."""
    if interleaved:
        first, second = x_bthk.float().reshape(*x_bthk.shape[:-1], -1, 2).unbind(-1)
        return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2).to(x_bthk.dtype)
    first, second = x_bthk.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_bthk.dtype)


def attention_masks(
    start: int, t: int, documents_bt: Tensor | None, window: int | None, x_btd: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """(mask without, mask with the sliding window), 0 where a query may look and -inf elsewhere; None is plain causal.

    Each is (1 or b, 1, t, start + t), as wide as the queries that come of x_btd: of any other, attention would make a copy of its
    own in every layer, and keep it.
    """
    windowed = window is not None and start + t > window
    if documents_bt is None and not windowed and (start == 0 or t == 1):
        return None, None
    query = torch.arange(start, start + t, device=x_btd.device)[:, None]
    key = torch.arange(start + t, device=x_btd.device)[None, :]
    full = (key <= query)[None, None]
    if documents_bt is not None:
        full = full & (documents_bt[:, None, start:, None] == documents_bt[:, None, None, :])
    added = _added(full, x_btd)
    return added, _added(full & (query - key < window), x_btd) if windowed and window is not None else added


def _added(mask: Tensor, x_btd: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=_computed(x_btd), device=mask.device).masked_fill_(~mask, -torch.inf)

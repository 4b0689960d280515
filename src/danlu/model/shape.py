"""The shape of a decoder as numbers: what every other room reads, and no framework knows more of."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Family = Literal["llama", "mistral", "qwen2", "qwen3", "ernie4_5"]


class RopeScaling(BaseModel):
    """How rotary frequencies are stretched beyond the length a model was trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["linear", "llama3", "yarn"] = Field(
        description="linear: positions divided by the factor; llama3: by frequency band; yarn: by band, attention rescaled."
    )
    factor: float = Field(gt=0, description="How many times longer than the original maximum.")
    original_max_sequence_length: int | None = Field(
        None, gt=0, description="Tokens; the length before scaling. llama3 and yarn read it."
    )
    low_frequency_factor: float = Field(1.0, gt=0, description="llama3: wavelengths above original/low are scaled fully.")
    high_frequency_factor: float = Field(4.0, gt=0, description="llama3: wavelengths below original/high are left alone.")
    beta_fast: float = Field(32.0, gt=0, description="yarn: rotations above which a dimension is left alone.")
    beta_slow: float = Field(1.0, gt=0, description="yarn: rotations below which a dimension is scaled fully.")
    attention_factor: float | None = Field(
        None, gt=0, description="yarn: factor on cos and sin; null computes 0.1 ln(factor) + 1."
    )


class Architecture(BaseModel):
    """The choices that every family makes, each with the Llama default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    family: Family = Field("llama", description="Which Hugging Face architecture the weights are named after.")
    kv_heads: int | None = Field(None, gt=0, description="Key/value heads (grouped-query attention); null: as many as heads.")
    head_size: int | None = Field(None, gt=0, description="Dimensions of one head; null: hidden_size / heads.")
    max_sequence_length: int = Field(4096, gt=0, description="Tokens; the longest position the model is made for.")
    tied_embeddings: bool = Field(False, description="Input and output embedding share one tensor.")
    qkv_bias: bool = Field(False, description="Biases on the query, key and value projections (Qwen2).")
    output_bias: bool = Field(False, description="Bias on the attention output projection.")
    mlp_bias: bool = Field(False, description="Biases on the three MLP projections.")
    qk_norm: bool = Field(False, description="RMSNorm on every query and key head before the rotation (Qwen3).")
    rope_theta: float = Field(10000.0, gt=0, description="Base of the rotary frequencies.")
    rope_scaling: RopeScaling | None = Field(None, description="Stretching of the rotary frequencies; null: none.")
    norm_epsilon: float = Field(1e-5, gt=0, description="Added to the mean square inside RMSNorm.")
    sliding_window: int | None = Field(None, gt=0, description="Tokens a position may look back at, itself included; null: all.")
    full_attention_layers: int = Field(
        0, ge=0, description="First layers that ignore sliding_window (Qwen2's max_window_layers)."
    )


class ModelShape(Architecture):
    """A decoder with every dimension known."""

    vocab_size: int = Field(gt=0, description="Rows of the embedding.")
    layers: int = Field(gt=0, description="Decoder blocks.")
    hidden_size: int = Field(gt=0, description="Width of the residual stream.")
    ffn_size: int = Field(gt=0, description="Width of one MLP matrix (gate, up and down).")
    heads: int = Field(gt=0, description="Query heads.")

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelShape:
        if self.heads % self.key_value_heads:
            divisors = " or ".join(str(count) for count in nearest_divisors(self.heads, self.key_value_heads))
            _contradiction("kv_heads", f"{self.kv_heads} does not divide heads ({self.heads}); give {divisors}")
        if self.head_size is None and self.hidden_size % self.heads:
            multiple = self.hidden_size // self.heads * self.heads or self.heads
            way_out = f"give hidden_size {multiple} or {multiple + self.heads}, or head_size"
            _contradiction("hidden_size", f"{self.hidden_size} is not a multiple of heads ({self.heads}); {way_out}")
        if self.head_dim % 2:
            origin = "" if self.head_size else f" (hidden_size {self.hidden_size} / heads {self.heads})"
            way_out = f"give head_size {self.head_dim - 1 or 2} or {self.head_dim + 1}"
            _contradiction("head_size", f"{self.head_dim}{origin} is odd, but rotary positions turn pairs; {way_out}")
        return self

    @property
    def key_value_heads(self) -> int:
        """Key/value heads, resolved."""
        return self.kv_heads or self.heads

    @property
    def interleaved_rotary(self) -> bool:
        """Whether rotary positions turn the pairs (2 i, 2 i + 1) of a head and not (i, i + head_dim / 2)."""
        return self.family == "ernie4_5"

    @property
    def head_dim(self) -> int:
        """Dimensions of one head, resolved."""
        return self.head_size or self.hidden_size // self.heads


def nearest_divisors(value: int, wanted: int) -> list[int]:
    """The divisors of `value` next to `wanted` on either side; 1 and `value` stand in where none is within a million."""
    below = next((divisor for divisor in range(wanted, max(0, wanted - 10**6), -1) if value % divisor == 0), 1)
    above = next((divisor for divisor in range(wanted, min(value, wanted + 10**6)) if value % divisor == 0), value)
    return sorted({below, above})


def _contradiction(field: str, problem: str) -> None:
    """Raise inside a validator, with the field that the problem is about; an error of the whole model names none."""
    raise PydanticCustomError("shape", "{field}: {problem}", {"field": field, "problem": problem})

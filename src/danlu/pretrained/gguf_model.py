"""The shape and the weights in a GGUF file, read through the `gguf` library. Tensors are dequantised one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from danlu.data.arrays import Array
from danlu.errors import UserError
from danlu.model.families import check_family, tensor_shapes
from danlu.model.shape import ModelShape, RopeScaling
from danlu.pretrained.names import FREQUENCIES, gguf_name, pairs_to_halves, rotary_heads

READABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_FAMILIES = ("llama", "qwen2", "qwen3", "ernie4_5")
_LLAMA3: dict[str, Any] = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_max_sequence_length": 8192}
"""The only settings of Llama 3's scaling that were published; a file keeps what they come to, and not themselves."""


class GgufModel:
    """An open file. UserError: no GGUF file, cut off, or of an architecture or a type of tensors that danlu has not."""

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader

        self.file = file
        try:
            reader = GGUFReader(file)
            self.fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from None
        except Exception as error:  # whatever the library stumbles over in a file that is damaged
            raise UserError(f"{file}: no complete GGUF file ({type(error).__name__}: {error})") from None
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = str(self.fields.get("general.architecture"))
        if self.architecture not in _FAMILIES:
            raise UserError(f"{file}: architecture {self.architecture!r} is none that danlu has ({', '.join(_FAMILIES)})")
        self.shape = self._shape()
        self._check()

    def _get(self, name: str, default: Any = None) -> Any:
        value = self.fields.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise UserError(f"{self.file}: {self.architecture}.{name} is missing")
        return value

    def _number(self, name: str, default: float | None = None) -> float:
        """A float as it was written in decimals, before it became one of 32 bits."""
        return float(str(np.float32(self._get(name, default))))

    def _shape(self) -> ModelShape:
        if self._get("expert_count", 0):
            raise UserError(f"{self.file}: {self.architecture}.expert_count is set; danlu has no mixture of experts")
        hidden, heads = self._get("embedding_length"), self._get("attention.head_count")
        kv_heads, head_dim = self._get("attention.head_count_kv", heads), self._get("attention.key_length", hidden // heads)
        if self._get("rope.dimension_count", head_dim) != head_dim:
            raise UserError(f"{self.file}: only a part of each head is rotated; danlu rotates whole heads")
        window = self._get("attention.sliding_window", 0) or None
        family = self.architecture
        if family == "llama" and (window or hidden % heads):
            family = "mistral"
        embedding = self._tensors.get("token_embd.weight")
        try:
            shape = ModelShape(
                family=family,  # type: ignore[arg-type]
                vocab_size=int(embedding.shape[1]) if embedding is not None else self._get("vocab_size"),
                layers=self._get("block_count"),
                hidden_size=hidden,
                ffn_size=self._get("feed_forward_length"),
                heads=heads,
                kv_heads=None if kv_heads == heads else kv_heads,
                head_size=None if head_dim * heads == hidden else head_dim,
                max_sequence_length=self._get("context_length"),
                tied_embeddings="output.weight" not in self._tensors,
                qkv_bias="blk.0.attn_q.bias" in self._tensors,
                output_bias="blk.0.attn_output.bias" in self._tensors,
                mlp_bias="blk.0.ffn_up.bias" in self._tensors,
                qk_norm="blk.0.attn_q_norm.weight" in self._tensors,
                rope_theta=self._number("rope.freq_base", 10_000.0),
                rope_scaling=self._scaling(),
                norm_epsilon=self._number("attention.layer_norm_rms_epsilon"),
                sliding_window=window,
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{self.file}: {': '.join([*map(str, first['loc']), first['msg']])}") from None
        check_family(shape)
        return self._llama3(shape) if FREQUENCIES in self._tensors else shape

    def _scaling(self) -> RopeScaling | None:
        kind = self.fields.get(f"{self.architecture}.rope.scaling.type", "none")
        if kind == "none":
            return None
        factor = self._number("rope.scaling.factor")
        if kind == "linear":
            return RopeScaling(kind="linear", factor=factor)
        if kind == "yarn":
            original = self._get("rope.scaling.original_context_length")
            return RopeScaling(kind="yarn", factor=factor, original_max_sequence_length=original)
        raise UserError(f"{self.file}: rope.scaling.type is {kind!r}; danlu reads linear, yarn and Llama 3's")

    def _llama3(self, shape: ModelShape) -> ModelShape:
        """The shape with Llama 3's scaling, where the file's divisors are those that it comes to."""
        from danlu.model.rope import frequencies

        divisors = self._dequantised(FREQUENCIES)
        scaled = shape.model_copy(update={"rope_scaling": RopeScaling(kind="llama3", factor=float(divisors.max()), **_LLAMA3)})
        plain, wanted = frequencies(shape)[0], frequencies(scaled)[0]
        if divisors.shape != plain.shape or not np.allclose(plain / divisors, wanted, rtol=1e-5):
            raise UserError(f"{self.file}: {FREQUENCIES} is not the scaling of Llama 3's publishers; danlu reads no other")
        return scaled

    def _check(self) -> None:
        expected = {gguf_name(name): shape for name, shape in tensor_shapes(self.shape).items()}
        missing, extra = expected.keys() - self._tensors.keys(), self._tensors.keys() - expected.keys() - {FREQUENCIES}
        faults = [("missing", sorted(missing)), ("unknown", sorted(extra))]
        if any(names for _, names in faults):
            text = "; ".join(f"{len(names)} {fault} ({', '.join(names[:3])})" for fault, names in faults if names)
            raise UserError(f"{self.file}: the tensors do not fit family {self.shape.family}: {text}")
        for name, wanted in expected.items():
            found = self._tensors[name]
            if (size := tuple(int(n) for n in reversed(found.shape))) != wanted:
                raise UserError(f"{self.file}: {name} has shape {size}, family {self.shape.family} needs {wanted}")
            if found.tensor_type.name not in READABLE:
                raise UserError(
                    f"{self.file}: {name} is {found.tensor_type.name}; danlu reads {', '.join(READABLE)}: take one of those"
                )

    def _dequantised(self, name: str) -> Array:
        from gguf.quants import dequantize

        found = self._tensors[name]
        return np.asarray(dequantize(found.data, found.tensor_type), np.float32)

    def tensor(self, name: str) -> Array:
        """A tensor by its Hugging Face name, float32, in Hugging Face's order of rows. UserError: it holds NaN or infinity."""
        values = self._dequantised(gguf_name(name)).reshape(tensor_shapes(self.shape)[name])
        if not np.isfinite(values).all():
            raise UserError(f"{self.file}: {gguf_name(name)} holds NaN or infinity; the file is damaged, take another one")
        heads = rotary_heads(name, self.shape)
        return values if heads is None else pairs_to_halves(values, heads)

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """What the file says of its tokenizer, without the prefix of the names."""
        prefix = "tokenizer."
        return {name.removeprefix(prefix): value for name, value in self.fields.items() if name.startswith(prefix)}

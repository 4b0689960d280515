"""A model as a GGUF file, for llama.cpp and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data import tokenizer as tokenizers
from danlu.data.arrays import Array
from danlu.data.tokenizer import settings_beside
from danlu.errors import UserError
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape
from danlu.pretrained.gguf_tokenizer import cut_of
from danlu.pretrained.names import FREQUENCIES, architecture, gguf_name, halves_to_pairs, rotary_heads

TYPES = ("f16", "q8_0")
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5


def write_gguf(shape: ModelShape, tensor: Callable[[str], Array], tokenizer: Path, file: Path, kind: str, name: str) -> None:
    """Write a whole file; matrices in ``kind``, vectors in F32. ``tokenizer``: a folder that holds one.

    UserError: GGUF has no word for the model's tokenizer or rotary scaling, or a matrix has no whole blocks of 32 a row.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
    from gguf.quants import quantize

    shapes = tensor_shapes(shape)
    if kind == "q8_0" and (odd := next((each for each, size in shapes.items() if len(size) > 1 and size[1] % 32), None)):
        raise UserError(f"{odd} has rows of {shapes[odd][1]} numbers, and Q8_0 packs 32 together; take gguf-f16")
    writer = GGUFWriter(file, architecture(shape))
    _shape(writer, shape, name)
    _tokenizer(writer, tokenizer, shape.vocab_size)
    writer.add_file_type(LlamaFileType.MOSTLY_F16 if kind == "f16" else LlamaFileType.MOSTLY_Q8_0)
    matrices = GGMLQuantizationType.F16 if kind == "f16" else GGMLQuantizationType.Q8_0
    if shape.rope_scaling is not None and shape.rope_scaling.kind == "llama3":
        writer.add_tensor(FREQUENCIES, _divisors(shape))
    for each, size in shapes.items():
        values = np.asarray(tensor(each), np.float32)
        heads = rotary_heads(each, shape)
        values = values if heads is None else halves_to_pairs(values, heads)
        if len(size) > 1 and kind == "f16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            raise UserError(f"{each} holds values above 65504, which F16 cannot; take gguf-q8_0")
        stored = matrices if len(size) > 1 else GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(each), quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shape(writer: Any, shape: ModelShape, name: str) -> None:
    writer.add_name(name)
    writer.add_context_length(shape.max_sequence_length)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn_size)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocab_size)
    if shape.sliding_window is not None:
        raise UserError("model.sliding_window: what reads GGUF ignores it in this family; export to the Hugging Face layout")
    scaling = shape.rope_scaling
    if scaling is not None and scaling.kind != "llama3":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR if scaling.kind == "linear" else RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling.factor)
        if scaling.original_max_sequence_length is not None:
            writer.add_rope_scaling_orig_ctx_len(scaling.original_max_sequence_length)


def _divisors(shape: ModelShape) -> Array:
    from danlu.model.rope import frequencies

    plain = frequencies(shape.model_copy(update={"rope_scaling": None}))[0]
    return (plain / frequencies(shape)[0]).astype(np.float32)


def _tokenizer(writer: Any, folder: Path, rows: int) -> None:
    data = (folder / tokenizers.FILE).read_bytes()
    told, settings = json.loads(data), settings_beside(folder / tokenizers.FILE)
    loaded = tokenizers.load(folder)
    added = {each["content"]: bool(each["special"]) for each in told["added_tokens"]}
    vocabulary = told["model"]["vocab"] | {each["content"]: each["id"] for each in told["added_tokens"]}
    tokens, kinds = [f"[PAD{number}]" for number in range(rows)], [_UNUSED] * rows
    for token, number in vocabulary.items():
        tokens[number] = token
        kinds[number] = (_CONTROL if added[token] else _USER) if token in added else _NORMAL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in told["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut_of(data, folder))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(loaded.begin_id is not None)
    writer.add_eos_token_id(loaded.end_id)
    if loaded.begin_id is not None:
        writer.add_bos_token_id(loaded.begin_id)
    if isinstance(template := settings.get("chat_template"), str):
        writer.add_chat_template(template)

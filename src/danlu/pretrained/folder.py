"""A folder in the Hugging Face layout, made of a GGUF file or of another such folder; complete or absent."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data import tokenizer as tokenizers
from danlu.data.arrays import Array
from danlu.engines.hugging_face import check_headers, hugging_face_files, split_files, write_index
from danlu.errors import UserError
from danlu.export import written
from danlu.files import write_json
from danlu.model.families import TensorType, tensor_shapes, to_hugging_face
from danlu.model.shape import ModelShape
from danlu.pretrained.gguf_model import GgufModel
from danlu.pretrained.gguf_tokenizer import tokenizer_json
from danlu.recipe.resolve import checkpoint_shape
from danlu.recipe.sections import ModelSection

TYPES: dict[str, tuple[str, TensorType, int]] = {
    "fp32": ("F32", "float32", 4),
    "bf16": ("BF16", "bfloat16", 2),
    "fp16": ("F16", "float16", 2),
}
GENERATION = "generation_config.json"
_TOKENIZER_FILES = (tokenizers.FILE, tokenizers.SETTINGS, "special_tokens_map.json", tokenizers.TEMPLATE)


def import_model(source: Path, folder: Path, dtype: str, tokenizer: Path | None = None, layers: str | None = None) -> ModelShape:
    """Write a published model into a new folder, from which ``model.hugging_face`` and other programs take it.

    ``source``: a GGUF file, or a folder in the Hugging Face layout. With ``layers``, only some of its layers. Needs memory for
    one tensor. UserError: it is neither, its tensors do not fit, the folder exists. DanluError: the disk is full.
    """
    if folder.exists():
        raise UserError(f"{folder} exists; give another folder with --to")
    if source.suffix in (".bin", ".pt", ".pth"):
        raise UserError(
            f"{source}: pickled weights are not read, since they can run code; "
            "convert them where they came from: model.save_pretrained(folder, safe_serialization=True)"
        )
    if source.is_dir():
        shape, tensor, settings = _hugging_face(source)
    elif source.is_file():
        shape, tensor, settings = _gguf(source, tokenizer)
    else:
        raise UserError(f"{source}: there is no such file or folder")
    if layers is not None:
        shape, tensor = thinned(shape, tensor, layers)
    with written(folder, replace=False) as partial:
        for name, data in settings(tokenizer or source).items():
            (partial / name).write_bytes(data)
        write_weights(shape, tensor, partial, dtype)
        _write_config(shape, partial, dtype)
        if (told := source / GENERATION).is_file():  # it may name more tokens at which to end
            shutil.copyfile(told, partial / GENERATION)
    return shape


Tensors = Callable[[str], Array]
Settings = Callable[[Path], dict[str, bytes]]


def thinned(shape: ModelShape, tensor: Tensors, layers: str) -> tuple[ModelShape, Tensors]:
    """The model with some of its layers, as ``kept_layers`` reads them."""
    kept = kept_layers(layers, shape.layers)

    def of_kept(name: str) -> Array:
        parts = name.split(".")
        if parts[:2] == ["model", "layers"]:
            parts[2] = str(kept[int(parts[2])])
        return tensor(".".join(parts))

    full = sum(layer < shape.full_attention_layers for layer in kept)
    return shape.model_copy(update={"layers": len(kept), "full_attention_layers": full}), of_kept


def kept_layers(told: str, there: int) -> list[int]:
    """Which layers ``15`` (evenly spaced, the first and the last among them) or ``0-7,23-29`` names. UserError: none such."""
    kept: list[int] = []
    if told.isdecimal() and 1 <= int(told) < there:
        count = int(told)
        kept = [round(number * (there - 1) / max(1, count - 1)) for number in range(count)]
    elif not told.isdecimal() and re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", told):
        ends = [[int(end) for end in part.split("-")] for part in told.split(",")]
        kept = [layer for first, *last in ends for layer in range(first, (last or [first])[0] + 1)]
    if kept and kept == sorted(set(kept)) and kept[-1] < there:
        return kept
    half = max(1, there // 2)
    text = (
        f"the model has layers 0 to {there - 1}; give fewer than {there}, such as {half}, or rising numbers such as 0-{half - 1}"
    )
    raise UserError(f"--layers {told}: {text}")


def _gguf(file: Path, tokenizer: Path | None) -> tuple[ModelShape, Tensors, Settings]:
    model = GgufModel(file)
    if tokenizer is not None:
        return model.shape, model.tensor, _tokenizer_files
    data, settings = tokenizer_json(model.tokenizer, file)
    text = json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
    return model.shape, model.tensor, lambda _: {tokenizers.FILE: data, tokenizers.SETTINGS: text.encode("utf-8")}


def _hugging_face(folder: Path) -> tuple[ModelShape, Tensors, Settings]:
    from safetensors import safe_open

    from danlu.engines.torch.slices import stored

    shape = checkpoint_shape(ModelSection(hugging_face=str(folder)))
    files = hugging_face_files(folder)
    check_headers(shape, folder, stored(files))
    places = {found.name: found.file for found in stored(files)}

    def tensor(name: str) -> Array:
        with safe_open(places[name], framework="pt") as reader:
            values: Array = reader.get_tensor(name).float().numpy()
        if not np.isfinite(values).all():
            raise UserError(f"{places[name]}: {name} holds NaN or infinity; the checkpoint is damaged, take another one")
        return values

    return shape, tensor, _tokenizer_files


def _tokenizer_files(folder: Path) -> dict[str, bytes]:
    if not (folder / tokenizers.FILE).is_file():
        raise UserError(f"{folder}: there is no {tokenizers.FILE} in it; give the folder of one with --tokenizer")
    return {name: (folder / name).read_bytes() for name in _TOKENIZER_FILES if (folder / name).is_file()}


def write_weights(shape: ModelShape, tensor: Tensors, folder: Path, dtype: str) -> None:
    """Safetensors of at most 5 GiB and their index, one tensor in memory at a time."""
    kind, _, width = TYPES[dtype]
    shapes = tensor_shapes(shape)
    sizes = {name: int(np.prod(size)) * width for name, size in shapes.items()}
    files = split_files(sizes)
    for file, names in files.items():
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in names:
            begin, end = end, end + sizes[name]
            header[name] = {"dtype": kind, "shape": list(shapes[name]), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                stream.write(_converted(name, tensor(name), dtype).tobytes())
    write_index(files, sizes, folder)


def _converted(name: str, values: Array, dtype: str) -> Array:
    made: Array = values.astype("<f4", copy=False)
    if dtype == "fp32":
        return made
    if dtype == "bf16":  # the upper half of a float32, rounded to the nearest even one
        bits = made.view("<u4")
        return np.asarray((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16, "<u2")
    with np.errstate(over="ignore"):
        made = values.astype("<f2")
    if not np.isfinite(made).all():
        raise UserError(f"{name} holds values above 65504, which fp16 cannot; take bf16 or fp32")
    return made


def _write_config(shape: ModelShape, folder: Path, dtype: str) -> None:
    loaded = tokenizers.load(folder)
    if loaded.vocab_size > shape.vocab_size:
        raise UserError(
            f"the tokenizer has {loaded.vocab_size:,} tokens and the model {shape.vocab_size:,} rows of embeddings; "
            "it is another model's: give the right one with --tokenizer"
        )
    ends = {"bos_token_id": loaded.begin_id, "eos_token_id": loaded.end_id}
    write_json(folder / "config.json", to_hugging_face(shape, **ends, dtype=TYPES[dtype][1]))
    write_json(folder / GENERATION, {name: it for name, it in ends.items() if it is not None})

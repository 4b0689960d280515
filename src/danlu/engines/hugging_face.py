"""Folders of weights in the Hugging Face layout: which files there are, and whether they hold the model. No framework."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from danlu.engines.stored import Stored
from danlu.errors import UserError
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

SHARD_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_READABLE = ("F32", "BF16", "F16", "F64")
_KINDS = {"BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "F8_E4M3": "float8_e4m3fn"}
"""What frameworks call the types that weights may be quantized to."""


def split_files(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Tensors (bytes by name), in their order, by the file that each goes to."""
    files: list[list[str]] = [[]]
    room = SHARD_BYTES
    for name, size in sizes.items():
        if size > room and files[-1]:
            files.append([])
            room = SHARD_BYTES
        files[-1].append(name)
        room -= size
    if len(files) == 1:
        return {SINGLE: files[0]}
    return {f"model-{number:05d}-of-{len(files):05d}.safetensors": names for number, names in enumerate(files, 1)}


def write_index(files: Mapping[str, list[str]], sizes: Mapping[str, int], folder: Path) -> list[Path]:
    """What says which tensor lies in which file, where there are several; returns the files with it."""
    paths = [folder / file for file in files]
    if len(files) > 1:
        places = {name: file for file, names in files.items() for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        paths.append(folder / INDEX)
        paths[-1].write_text(json.dumps(index, indent=2))
    return paths


def check_headers(shape: ModelShape, folder: Path, tensors: Iterable[Stored], rounded: Collection[str] = ()) -> None:
    """Names, types and shapes of what the files of a folder hold; nothing is read but their heads.

    ``rounded`` are the names of those that may be int8.

    UserError: tensors that are missing, extra, misshapen or no plain floating-point numbers, by name.
    """
    expected = tensor_shapes(shape)
    ends: dict[str, tuple[int, ...]] = {}
    unknown, places = [], {}
    for found in tensors:
        name = found.name
        if stored_name(name, shape) not in expected:
            if not name.endswith("rotary_emb.inv_freq"):
                unknown.append(name)
            continue
        if found.dtype not in _READABLE and not (found.dtype == "I8" and name in rounded):
            kind = _KINDS.get(found.dtype, found.dtype)
            raise UserError(
                f"{found.file}: {name} is {kind}, so quantized or no weight; take the checkpoint in bf16, fp16 or fp32"
            )
        end = tuple(offset + size for offset, size in zip(found.offsets, found.shape, strict=True))
        before = ends.get(name, end)
        ends[name] = tuple(map(max, end, before)) if len(end) == len(before) else end
        places[name] = found.file
    for name, end in ends.items():
        if end != (wanted := expected[stored_name(name, shape)]):
            raise UserError(f"{places[name]}: {name} has shape {end}, the model needs {wanted}")
    missing = expected.keys() - {stored_name(name, shape) for name in ends}
    faults = [("missing", sorted(missing)), ("unknown", sorted(unknown))]
    if any(names for _, names in faults):
        text = "; ".join(f"{len(names)} {fault} ({', '.join(names[:3])})" for fault, names in faults if names)
        raise UserError(f"{folder}: the tensors do not fit the model: {text}")


def check_finite(found: Stored, finite: bool) -> None:
    """UserError: what was read of a tensor is not all finite."""
    if not finite:
        raise UserError(f"{found.file}: {found.name} holds NaN or infinity; the checkpoint is damaged, take another one")


def differ(found: Stored, other: str) -> UserError:
    """Two tensors of a file are one in the model, and not equal."""
    return UserError(
        f"{found.file}: {found.name} differs from {other}, but the model has one tensor for both; "
        "if the output embedding is one of its own, set tie_word_embeddings to false in config.json"
    )


def stored_name(name: str, shape: ModelShape) -> str:
    """The name under which a tensor is stored: tied embeddings under the input's."""
    return EMBEDDING if shape.tied_embeddings and name == HEAD else name


def hugging_face_files(folder: Path) -> list[Path]:
    """Those that hold the weights of a folder. UserError: none, or an index that leads nowhere."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            outside = [name for name in names if Path(name).name != name]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index}: not an index of safetensors files ({error})") from error
        if outside:
            raise UserError(f"{index}: {outside[0]!r} points outside the folder")
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise UserError(f"{index}: {absent[0]} is missing from the folder")
        return [folder / name for name in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")) or list(folder.glob("*.pth")):
        raise UserError(
            f"{folder}: pickled weights are not read, since they can run code; "
            "convert them where they came from: model.save_pretrained(folder, safe_serialization=True)"
        )
    raise UserError(f"{folder}: no {SINGLE} and no {INDEX} in it")


def weights_files(folder: Path) -> list[Path]:
    """Those that hold the weights of a checkpoint, whoever wrote it. UserError: none."""
    return sorted(folder.glob("weights-*.safetensors")) or hugging_face_files(folder)

"""Weights as safetensors in the Hugging Face layout. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from danlu.engines.torch.safetensors_file import write_file
from danlu.engines.torch.slices import Target, check_filled, stored
from danlu.errors import UserError
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_READABLE = ("F32", "BF16", "F16", "F64")
SHARD_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def write_weights(parameters: Mapping[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
    """One safetensors file, or files of at most 5 GiB and their index, as transformers writes them; from one process.

    UserError: a value does not fit the type. OSError: the disk is full, or another failed write.
    """
    sizes = {name: parameter.numel() * dtype.itemsize for name, parameter in parameters.items()}
    files = split_files(sizes)
    for file, names in files.items():
        write_file({name: _converted(name, parameters[name], dtype) for name in names}, folder / file)
    write_index(files, sizes, folder)


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


def _converted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    ready = tensor.to("cpu", dtype).contiguous()
    if dtype == torch.float16 and not torch.isfinite(ready).all():
        raise UserError(f"{name} holds values above 65504, which fp16 cannot; export as bf16 or fp32")
    return ready


def read_weights(parameters: Mapping[str, Tensor], shape: ModelShape, folder: Path, files: list[Path]) -> None:
    """Fill this process's parameters, and read no more than they need, from files of a folder that hold the whole model.

    UserError: tensors that are missing, extra, misshapen, no plain floating-point numbers, or hold a NaN or infinity; by name.
    """
    _check_headers(shape, folder, files)
    targets: dict[str, list[Target]] = {}
    for name, parameter in parameters.items():
        targets.setdefault(_stored(name, shape), []).append(Target(name, parameter))
    first: dict[str, str] = {}
    for found in stored(files):
        name = _stored(found.name, shape)
        other = first.setdefault(name, found.name)
        for target in targets.get(name, []):
            if other == found.name:
                filled = target.take(found)
                if filled is not None and not torch.isfinite(filled).all():
                    raise UserError(
                        f"{found.file}: {found.name} holds NaN or infinity; the checkpoint is damaged, take another one"
                    )
            elif target.differs(found):
                raise UserError(
                    f"{found.file}: {found.name} differs from {other}, but the model has one tensor for both; "
                    "if the output embedding is one of its own, set tie_word_embeddings to false in config.json"
                )
    check_filled((target for each in targets.values() for target in each), folder)


def _check_headers(shape: ModelShape, folder: Path, files: list[Path]) -> None:
    """Names, types and shapes; nothing is read but the heads of the files."""
    expected = tensor_shapes(shape)
    ends: dict[str, tuple[int, ...]] = {}
    unknown, places = [], {}
    for found in stored(files):
        name = found.name
        if _stored(name, shape) not in expected:
            if not name.endswith("rotary_emb.inv_freq"):
                unknown.append(name)
            continue
        if found.dtype not in _READABLE:
            kind = str(found.content[()].dtype).removeprefix("torch.")
            raise UserError(
                f"{found.file}: {name} is {kind}, so quantized or no weight; take the checkpoint in bf16, fp16 or fp32"
            )
        end = tuple(offset + size for offset, size in zip(found.offsets, found.shape, strict=True))
        before = ends.get(name, end)
        ends[name] = tuple(map(max, end, before)) if len(end) == len(before) else end
        places[name] = found.file
    for name, end in ends.items():
        if end != (wanted := expected[_stored(name, shape)]):
            raise UserError(f"{places[name]}: {name} has shape {end}, the model needs {wanted}")
    missing = expected.keys() - {_stored(name, shape) for name in ends}
    faults = [("missing", sorted(missing)), ("unknown", sorted(unknown))]
    if any(names for _, names in faults):
        text = "; ".join(f"{len(names)} {fault} ({', '.join(names[:3])})" for fault, names in faults if names)
        raise UserError(f"{folder}: the tensors do not fit the model: {text}")


def _stored(name: str, shape: ModelShape) -> str:
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

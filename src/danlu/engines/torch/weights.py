"""Weights as safetensors in the Hugging Face layout. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from danlu import heartbeat
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.pieces import fill, gather, own_piece
from danlu.errors import UserError
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_READABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHARD_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def write_weights(parameters: Mapping[str, Tensor], folder: Path, dtype: torch.dtype, layout: Layout) -> None:
    """One safetensors file, or files of at most 5 GiB and their index, as transformers writes them.

    Every pipeline rank writes its layers; all processes must call, since the pieces of each tensor are gathered.
    UserError: a value does not fit the type. OSError: the disk is full, or another failed write.
    """
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, parameter in parameters.items():
        whole = gather(parameter.detach())
        heartbeat.tick()
        if not layout.writes:
            continue
        size = whole.numel() * dtype.itemsize
        if size > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = _converted(name, whole, dtype)
        room -= size
    held = layout.gather([{name: tensor.nbytes for name, tensor in shard.items()} for shard in shards if layout.writes])
    total = sum(len(each) for each in held)
    names = [SINGLE] if total == 1 else [f"model-{i + 1:05d}-of-{total:05d}.safetensors" for i in range(total)]
    before = sum(len(each) for each in held[: layout.rank])
    if layout.writes:
        for name, shard in zip(names[before:], shards, strict=False):
            write_file(shard, folder / name)
    if total > 1 and layout.rank == 0:
        sizes = [each for rank in held for each in rank]
        places = {key: name for name, shard in zip(names, sizes, strict=True) for key in shard}
        size = sum(sum(shard.values()) for shard in sizes)
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2))


def _converted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    ready = tensor.to("cpu", dtype).contiguous()
    if dtype == torch.float16 and not torch.isfinite(ready).all():
        raise UserError(f"{name} holds values above 65504, which fp16 cannot; export as bf16 or fp32")
    return ready


def write_file(tensors: dict[str, Tensor], file: Path) -> None:
    """One safetensors file. OSError as from any other write: the library's own error hides a full disk in its text."""
    try:
        save_file(tensors, file, metadata={"format": "pt"})
        file.chmod(0o666 & ~_umask())  # the library makes files that only their owner can read
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def read_weights(parameters: Mapping[str, Tensor], shape: ModelShape, folder: Path) -> None:
    """Fill this process's parameters from the safetensors of a folder that holds the whole model.

    UserError: no safetensors, or tensors that are missing, extra, misshapen, no plain floating-point numbers, or hold a NaN
    or infinity; by name.
    """
    expected = tensor_shapes(shape)
    targets: dict[str, list[Tensor]] = {}
    for name, parameter in parameters.items():
        targets.setdefault(_stored(name, shape), []).append(parameter)
    read: dict[str, str] = {}
    unknown = []
    for file in _files(folder):
        for name, tensor in _tensors(file):
            stored = _stored(name, shape)
            if stored not in expected:
                if not name.endswith("rotary_emb.inv_freq"):
                    unknown.append(name)
                continue
            value = _checked(file, name, tensor, expected[stored])
            if stored in read:
                _check_tied(file, name, read[stored], value, targets.get(stored, []))
            read.setdefault(stored, name)
            for parameter in targets.get(stored, []):
                fill(parameter, value)
    faults = [("missing", sorted(expected.keys() - read.keys())), ("unknown", sorted(unknown))]
    if any(names for _, names in faults):
        text = "; ".join(f"{len(names)} {fault} ({', '.join(names[:3])})" for fault, names in faults if names)
        raise UserError(f"{folder}: the tensors do not fit the model: {text}")


def _stored(name: str, shape: ModelShape) -> str:
    """The name under which a tensor is stored: tied embeddings under the input's."""
    return EMBEDDING if shape.tied_embeddings and name == HEAD else name


def _check_tied(file: Path, name: str, other: str, value: Tensor, targets: list[Tensor]) -> None:
    """A tied tensor that is stored twice must be one and the same."""
    for parameter in targets:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not torch.equal(own_piece(value, parameter).to(local), local):
            raise UserError(
                f"{file}: {name} differs from {other}, but the model has one tensor for both; "
                "if the output embedding is one of its own, set tie_word_embeddings to false in config.json"
            )


def _checked(file: Path, name: str, tensor: Tensor, expected: tuple[int, ...]) -> Tensor:
    if tensor.dtype not in _READABLE:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{file}: {name} is {kind}, so quantized or no weight; take the checkpoint in bf16, fp16 or fp32")
    if tuple(tensor.shape) != expected:
        raise UserError(f"{file}: {name} has shape {tuple(tensor.shape)}, the model needs {expected}")
    value = tensor.to(torch.float32)
    if not torch.isfinite(value).all():
        raise UserError(f"{file}: {name} holds NaN or infinity; the checkpoint is damaged, take another one")
    return value


def _files(folder: Path) -> list[Path]:
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


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118 - not a dict
                yield name, reader.get_tensor(name)
    except SafetensorError as error:
        raise UserError(f"{file}: not a complete safetensors file ({error})") from error

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
from torch import Tensor, nn

from danlu.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_READABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHARD_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by name: a tied output embedding is not listed beside the input embedding."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def write_weights(tensors: Mapping[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
    """One safetensors file, or files of at most 5 GiB and their index, as transformers writes them.

    UserError: a value does not fit the type. OSError: the disk is full, or another failed write.
    """
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in tensors.items():
        size = tensor.numel() * dtype.itemsize
        if size > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = tensor
        room -= size
    names = [SINGLE] if len(shards) == 1 else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_file({key: _converted(key, tensor, dtype) for key, tensor in shard.items()}, folder / name)
    if len(shards) > 1:
        total = sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))


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


def read_weights(model: nn.Module, folder: Path) -> None:
    """Fill every parameter of the model from the safetensors of a folder, converting to the parameter's type.

    UserError: no safetensors, or tensors that are missing, extra, misshapen, no plain floating-point numbers, or hold a NaN
    or infinity; by name.
    """
    targets = own_tensors(model)
    owners = {tensor.data_ptr(): name for name, tensor in targets.items()}
    aliases = {name: owners[tensor.data_ptr()] for name, tensor in model.state_dict().items() if name not in targets}
    read: dict[str, str] = {}
    unknown = []
    for file in _files(folder):
        for name, tensor in _tensors(file):
            owner = aliases.get(name, name)
            if owner not in targets:
                if not name.endswith("rotary_emb.inv_freq"):
                    unknown.append(name)
                continue
            target = targets[owner]
            value = _checked(file, name, tensor, target)
            if owner not in read:
                target.copy_(value)
                read[owner] = name
            elif not torch.equal(value.to(target.device), target):
                raise UserError(
                    f"{file}: {name} differs from {read[owner]}, but the model has one tensor for both; "
                    "if the output embedding is one of its own, set tie_word_embeddings to false in config.json"
                )
    faults = [("missing", sorted(targets.keys() - read.keys())), ("unknown", sorted(unknown))]
    if any(names for _, names in faults):
        text = "; ".join(f"{len(names)} {fault} ({', '.join(names[:3])})" for fault, names in faults if names)
        raise UserError(f"{folder}: the tensors do not fit the model: {text}")


def _checked(file: Path, name: str, tensor: Tensor, target: Tensor) -> Tensor:
    if tensor.dtype not in _READABLE:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{file}: {name} is {kind}, so quantized or no weight; take the checkpoint in bf16, fp16 or fp32")
    if tensor.shape != target.shape:
        raise UserError(f"{file}: {name} has shape {tuple(tensor.shape)}, the model needs {tuple(target.shape)}")
    value = tensor.to(target.dtype)
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

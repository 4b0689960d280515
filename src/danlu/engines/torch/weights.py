"""Weights as safetensors in the Hugging Face layout. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from danlu.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHARD_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by name: a tied output embedding is not listed beside the input embedding."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def write_weights(tensors: Mapping[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
    """One safetensors file, or files of at most 5 GiB and their index, as transformers writes them."""
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
        ready = {key: tensor.to("cpu", dtype).contiguous() for key, tensor in shard.items()}
        save_file(ready, folder / name, metadata={"format": "pt"})
    if len(shards) > 1:
        total = sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))


def read_weights(model: nn.Module, folder: Path) -> None:
    """Fill every parameter of the model from the safetensors of a folder, converting to the parameter's type.

    UserError: no safetensors, or tensors that are missing, extra, misshapen or hold a NaN or infinity; by name.
    """
    targets = own_tensors(model)
    tied = {name for name in model.state_dict() if name not in targets}
    missing, extra = set(targets), []
    for file in _files(folder):
        for name, tensor in _tensors(file):
            if name not in targets:
                if name not in tied and not name.endswith("rotary_emb.inv_freq"):
                    extra.append(name)
                continue
            target = targets[name]
            if tensor.shape != target.shape:
                raise UserError(f"{file}: {name} has shape {tuple(tensor.shape)}, the model needs {tuple(target.shape)}")
            if not torch.isfinite(tensor).all():
                raise UserError(f"{file}: {name} holds NaN or infinity; the checkpoint is damaged, take another one")
            target.copy_(tensor)
            missing.discard(name)
    if missing or extra:
        parts = [f"{len(names)} {kind} ({', '.join(sorted(names)[:3])})" for kind, names in (("missing", missing), ("unknown", extra)) if names]
        raise UserError(f"{folder}: the tensors do not fit the model: {'; '.join(parts)}")


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index}: not an index of safetensors files ({error})") from error
        outside = [name for name in names if Path(name).name != name]
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

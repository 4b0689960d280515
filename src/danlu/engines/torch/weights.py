"""Weights as safetensors in the Hugging Face layout. Nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from danlu.engines.hugging_face import check_finite, check_headers, differ, split_files, stored_name, write_index
from danlu.engines.torch.rounded import RoundedTarget, is_scale
from danlu.engines.torch.safetensors_file import write_file
from danlu.engines.torch.slices import Target, check_filled, stored
from danlu.errors import UserError
from danlu.model.shape import ModelShape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def write_weights(parameters: Mapping[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
    """One safetensors file, or files of at most 5 GiB and their index, as transformers writes them; from one process.

    UserError: a value does not fit the type. OSError: the disk is full, or another failed write.
    """
    sizes = {name: parameter.numel() * dtype.itemsize for name, parameter in parameters.items()}
    files = split_files(sizes)
    for file, names in files.items():
        write_file({name: _converted(name, parameters[name], dtype) for name in names}, folder / file)
    write_index(files, sizes, folder)


def _converted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    ready = tensor.to("cpu", dtype).contiguous()
    if dtype == torch.float16 and not torch.isfinite(ready).all():
        raise UserError(f"{name} holds values above 65504, which fp16 cannot; export as bf16 or fp32")
    return ready


def read_weights(
    parameters: Mapping[str, Tensor],
    shape: ModelShape,
    folder: Path,
    files: list[Path],
    beside: Callable[[str], bool] | None = None,
) -> None:
    """Fill this process's parameters, and read no more than they need, from files of a folder that hold the whole model.

    ``beside`` knows the names of tensors that may be there and are none of the model's own, such as adapters.

    UserError: tensors that are missing, extra, misshapen, no plain floating-point numbers, or hold a NaN or infinity; by name.
    """
    of_model = (found for found in stored(files) if beside is None or not beside(found.name))
    check_headers(shape, folder, of_model, {name for name, parameter in parameters.items() if parameter.dtype == torch.int8})
    targets: dict[str, list[Target]] = {}
    scales = {name: Target(name, parameter) for name, parameter in parameters.items() if is_scale(name)}
    for name, parameter in parameters.items():
        target = scales.get(name) or Target(name, parameter)
        if parameter.dtype == torch.int8:
            target = RoundedTarget(name, parameter, scales[f"{name}_scale"])
        targets.setdefault(stored_name(name, shape), []).append(target)
    first: dict[str, str] = {}
    for found in stored(files):
        name = stored_name(found.name, shape)
        other = first.setdefault(name, found.name)
        for target in targets.get(name, []):
            if other == found.name:
                filled = target.take(found)
                if filled is not None:
                    check_finite(found, bool(torch.isfinite(filled).all()))
            elif target.differs(found):
                raise differ(found, other)
    check_filled((target for each in targets.values() for target in each), folder)

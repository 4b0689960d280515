"""Weights as safetensors in the Hugging Face layout. Nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from danlu.engines.hugging_face import check_finite, check_headers, differ, split_files, stored_name, write_index
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.safetensors_file import Written, bf16, stored, write_file
from danlu.engines.paddle.slices import Target, check_filled, held_region
from danlu.errors import UserError
from danlu.model.adapters import is_adapter
from danlu.model.shape import ModelShape

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def write_weights(sizes: Mapping[str, int], make: Callable[[str], NDArray[np.float32]], folder: Path, dtype: str) -> None:
    """Tensors of these sizes, made one by one as files have them.

    One safetensors file, or files of at most 5 GiB and their index, as transformers writes them; from one process.

    UserError: a value does not fit the type. OSError: the disk is full, or another failed write.
    """
    in_bytes = {name: size * _BYTES[dtype] for name, size in sizes.items()}
    files = split_files(in_bytes)
    for file, names in files.items():
        write_file({name: converted(name, make(name), dtype) for name in names}, folder / file)
    write_index(files, in_bytes, folder)


def converted(name: str, array: NDArray[np.float32], dtype: str) -> Written:
    """For a file. UserError: a value does not fit the type."""
    if dtype == "fp32":
        return Written("F32", array)
    if dtype == "bf16":
        return Written("BF16", bf16(array))
    with np.errstate(over="ignore"):
        ready = array.astype(np.float16)
    if not np.isfinite(ready).all():
        raise UserError(f"{name} holds values above 65504, which fp16 cannot; export as bf16 or fp32")
    return Written("F16", ready)


def read_weights(
    parameters: Mapping[str, Tensor],
    shape: ModelShape,
    shapes: Mapping[str, tuple[int, ...]],
    layout: Layout,
    folder: Path,
    files: list[Path],
) -> None:
    """Fill this process's parameters from files of a folder that hold the whole model, and adapters if some are parameters.

    ``shapes`` are those of the whole tensors, as files have them.

    UserError: tensors that are missing, extra, misshapen, no plain floating-point numbers, or hold a NaN or infinity; by name.
    """
    adapted = any(map(is_adapter, parameters))
    check_headers(shape, folder, (found for found in stored(files) if not (adapted and is_adapter(found.name))))
    targets: dict[str, list[Target]] = {}
    for name, parameter in parameters.items():
        origin = stored_name(name, shape)  # tied embeddings are there a second time on the last rank of a pipeline
        targets.setdefault(origin, []).append(Target(name, held_region(name, parameter, shapes[origin], layout)))
    first: dict[str, str] = {}
    for found in stored(files):
        name = stored_name(found.name, shape)
        other = first.setdefault(name, found.name)
        for target in targets.get(name, []):
            if other == found.name:
                if (filled := target.take(found)) is not None:
                    check_finite(found, bool(np.isfinite(filled).all()))
            elif target.differs(found):
                raise differ(found, other)
    every = [target for each in targets.values() for target in each]
    check_filled(every, folder)
    for target in every:
        target.give(parameters[target.name], layout)

"""Weights as safetensors in the Hugging Face layout. Nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from danlu.engines.hugging_face import check_finite, check_headers, differ, split_files, stored_name, write_index
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.safetensors_file import Written, bf16, stored, write_file
from danlu.engines.paddle.slices import Target, array_of, check_filled, held_region
from danlu.errors import UserError
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def write_weights(parameters: Mapping[str, Tensor], folder: Path, dtype: str) -> None:
    """One safetensors file, or files of at most 5 GiB and their index, as transformers writes them; from one process.

    UserError: a value does not fit the type. OSError: the disk is full, or another failed write.
    """
    sizes = {name: parameter.size * _BYTES[dtype] for name, parameter in parameters.items()}
    files = split_files(sizes)
    for file, names in files.items():
        write_file({name: converted(name, array_of(name, parameters[name]), dtype) for name in names}, folder / file)
    write_index(files, sizes, folder)


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


def read_weights(parameters: Mapping[str, Tensor], shape: ModelShape, layout: Layout, folder: Path, files: list[Path]) -> None:
    """Fill this process's parameters from files of a folder that hold the whole model.

    UserError: tensors that are missing, extra, misshapen, no plain floating-point numbers, or hold a NaN or infinity; by name.
    """
    check_headers(shape, folder, stored(files))
    shapes = tensor_shapes(shape)
    targets: dict[str, Target] = {}
    first: dict[str, str] = {}
    for found in stored(files):
        name = stored_name(found.name, shape)
        # Tied embeddings are there a second time on the last rank of a pipeline.
        for own in (name, *([HEAD] if shape.tied_embeddings and name == EMBEDDING else [])):
            if own not in parameters:
                continue
            target = targets.setdefault(own, Target(own, held_region(own, parameters[own], shapes[name], layout)))
            other = first.setdefault(own, found.name)
            if other == found.name:
                if (filled := target.take(found)) is not None:
                    check_finite(found, bool(np.isfinite(filled).all()))
            elif target.differs(found):
                raise differ(found, other)
    check_filled(targets.values(), folder)
    for name, target in targets.items():
        target.give(parameters[name], layout)

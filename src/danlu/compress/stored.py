"""Folders of 8-bit models: safetensors in the layout of the `compressed-tensors` convention, format `int-quantized`.

Every matrix is int8 under its own name, and beside it, as `..._scale` (o, 1) in float32, what a row is multiplied by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from danlu.engines.hugging_face import SINGLE
from danlu.errors import UserError
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

Arrays = dict[str, NDArray[Any]]
SECTION = "quantization_config"
Scheme = Literal["plain", "w8", "w8a8"]
"""Of a folder: float weights; 8-bit weights; or these, with activations rounded to 8 bits where they meet them."""


def section(scheme: Scheme) -> dict[str, Any]:
    """What config.json says of 8-bit weights, and of what they are multiplied with."""
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    inputs = {**numbers, "strategy": "token", "dynamic": True} if scheme == "w8a8" else None
    group = {
        "targets": ["Linear", "Embedding"],
        "weights": {**numbers, "strategy": "channel", "dynamic": False},
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [],
    }


def without_section(config: Mapping[str, Any]) -> tuple[dict[str, Any], Scheme]:
    """The config.json of the model itself, and what holds of its weights. UserError: quantized in another way."""
    found = config.get(SECTION)
    plain = {name: value for name, value in config.items() if name != SECTION}
    if not found:
        return plain, "plain"
    known = section("w8")
    if not isinstance(found, dict) or any(found.get(name) != known[name] for name in ("quant_method", "format")):
        method = found.get("quant_method") if isinstance(found, dict) else found
        raise UserError(
            f"config.json: {SECTION} is {method!r}; danlu reads 8-bit weights as `danlu quantize` writes them, or plain ones"
        )
    groups = found.get("config_groups")
    rounded = isinstance(groups, dict) and any(isinstance(it, dict) and it.get("input_activations") for it in groups.values())
    return plain, "w8a8" if rounded else "w8"


def write(arrays: Mapping[str, NDArray[Any]], folder: Path) -> None:
    """One safetensors file."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / SINGLE, metadata={"format": "pt"})


def read(shape: ModelShape, folder: Path) -> Arrays:
    """All tensors, in memory of their own. UserError: they are missing, damaged, or do not hold this model."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / SINGLE
    try:
        found: Arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    wanted: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, size in tensor_shapes(shape).items():
        matrix = len(size) == 2
        wanted[name] = (size, "int8" if matrix else "float32")
        if matrix:
            wanted[f"{name}_scale"] = ((size[0], 1), "float32")
    for name, (size, kind) in wanted.items():
        if name not in found:
            raise UserError(f"{file}: {name} is missing")
        if found[name].shape != size or found[name].dtype.name != kind:
            raise UserError(f"{file}: {name} is {found[name].dtype} {found[name].shape}, the model needs {kind} {size}")
        if kind == "float32" and not np.isfinite(found[name]).all():
            raise UserError(f"{file}: {name} holds NaN or infinity; the file is damaged")
    if extra := sorted(found.keys() - wanted.keys()):
        raise UserError(f"{file}: {len(extra)} tensors that the model does not have ({', '.join(extra[:3])})")
    return found


def restored(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The float32 weights that the 8-bit ones stand for."""
    return {
        name: array * arrays[f"{name}_scale"] if array.dtype == np.int8 else array
        for name, array in arrays.items()
        if not name.endswith("_scale")
    }

"""Folders of quantized models: safetensors in the layout of the `compressed-tensors` convention.

With 8-bit activations (format `int-quantized`) a matrix is int8 under its own name; of weights alone (`pack-quantized`) it is
packed into words as ``..._packed``, with its size as ``..._shape``. Beside it are the scales, ``..._scale`` (o, 1) of rows or
(o, g) of groups. In memory it is always int8 under its own name, with its scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from danlu.compress import rounding
from danlu.compress.packing import pack, unpack, words
from danlu.compress.plan import Plan, Scheme, module
from danlu.engines.hugging_face import SINGLE
from danlu.errors import UserError
from danlu.model.drawing import EMBEDDING, HEAD
from danlu.model.families import tensor_shapes
from danlu.model.shape import ModelShape

Arrays = dict[str, NDArray[Any]]
SECTION = "quantization_config"
_FORMATS: dict[Scheme, str] = {"w8a8": "int-quantized", "w8a16": "pack-quantized", "w4a16": "pack-quantized"}
_TARGETS = {EMBEDDING: "Embedding", HEAD: "lm_head"}
_SCHEMES: dict[tuple[int, int], Scheme] = {(8, 8): "w8a8", (8, 16): "w8a16", (4, 16): "w4a16"}


def section(scheme: Scheme, shape: ModelShape, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What config.json says of these weights, and of what they are multiplied with."""
    kept = [name for name, size in tensor_shapes(shape).items() if len(size) == 2 and arrays[name].dtype != np.int8]
    if shape.tied_embeddings and EMBEDDING in kept:
        kept.append(HEAD)
    groups: list[dict[str, Any]] = []
    for name in arrays:
        if f"{name}_scale" not in arrays:
            continue
        target, told = _TARGETS.get(name, "Linear"), _group(scheme, name, arrays)
        same = next((group for group in groups if {**group, "targets": []} == told), None)
        if same is None:
            groups.append(same := told)
        if target not in same["targets"]:
            same["targets"].append(target)
    groups.sort(key=lambda group: "Linear" not in group["targets"])
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[scheme],
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": [module(name) for name in kept],
    }


def _group(scheme: Scheme, name: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What holds of a matrix, and of all that are stored like it."""
    integers = {"type": "int", "symmetric": True}
    columns = arrays[f"{name}_scale"].shape[1]
    strategy = {"strategy": "group", "group_size": arrays[name].shape[1] // columns} if columns > 1 else {"strategy": "channel"}
    return {
        "targets": [],
        "weights": {"num_bits": Plan(scheme).bits_of(name), **integers, **strategy, "dynamic": False},
        "input_activations": {"num_bits": 8, **integers, "strategy": "token", "dynamic": True} if scheme == "w8a8" else None,
        "output_activations": None,
    }


def without_section(config: Mapping[str, Any]) -> tuple[dict[str, Any], Scheme]:
    """The config.json of the model itself, and what holds of its weights. UserError: quantized in another way."""
    found = config.get(SECTION)
    plain = {name: value for name, value in config.items() if name != SECTION}
    if not found:
        return plain, "plain"
    try:
        group = found["config_groups"]["group_0"]
        weights, inputs = group["weights"], group["input_activations"]
        scheme = _SCHEMES[weights["num_bits"], inputs["num_bits"] if inputs else 16]
        if found["quant_method"] == "compressed-tensors" and found["format"] in _FORMATS.values() and weights["symmetric"]:
            return plain, scheme
    except (KeyError, TypeError, AttributeError):
        pass
    method = found.get("quant_method") if isinstance(found, dict) else found
    raise UserError(
        f"config.json: {SECTION} is {method!r} of another kind; danlu reads what `danlu quantize` writes, or plain weights"
    )


def write(arrays: Mapping[str, NDArray[Any]], folder: Path, scheme: Scheme) -> None:
    """One safetensors file."""
    from safetensors.numpy import save_file

    made: Arrays = {}
    for name, array in arrays.items():
        if array.dtype == np.int8 and _FORMATS[scheme] == "pack-quantized":
            made[f"{name}_packed"], made[f"{name}_shape"] = (
                pack(array, Plan(scheme).bits_of(name)),
                np.array(array.shape, np.int64),
            )
        else:
            made[name] = np.ascontiguousarray(array)
    save_file(made, folder / SINGLE, metadata={"format": "pt"})


def read(shape: ModelShape, folder: Path, scheme: Scheme = "w8a8") -> Arrays:
    """All tensors, in memory of their own. UserError: they are missing, damaged, or do not hold this model."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / SINGLE
    try:
        found: Arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    made: Arrays = {}
    try:
        for name, size in tensor_shapes(shape).items():
            _take(found, made, name, size, scheme)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if found:
        raise UserError(f"{file}: {len(found)} tensors that the model does not have ({', '.join(sorted(found)[:3])})")
    return made


def _take(found: Arrays, made: Arrays, name: str, size: tuple[int, ...], scheme: Scheme) -> None:
    """Move a tensor with what belongs to it, checked, from what was found to what is made of it."""
    scale = found.pop(f"{name}_scale", None) if len(size) == 2 else None
    packed = found.pop(f"{name}_packed", None) if scale is not None else None
    if scale is not None:
        groups = scale.shape[1] if scale.ndim == 2 and scale.shape[1] and size[1] % scale.shape[1] == 0 else 1
        _check(f"{name}_scale", scale, (size[0], groups), "float16" if scale.dtype == np.float16 else "float32")
        made[f"{name}_scale"] = scale
    if packed is not None:
        bits = Plan(scheme).bits_of(name)
        _check(f"{name}_packed", packed, (size[0], words(size[1], bits)), "int32")
        if (told := found.pop(f"{name}_shape", None)) is None or told.tolist() != list(size):
            raise UserError(f"{name}_shape is {told}, the model needs {list(size)}")
        made[name] = unpack(packed, bits, size[1])
        return
    if (array := found.pop(name, None)) is None:
        raise UserError(f"{name} is missing")
    _check(name, array, size, "float32" if scale is None else "int8")
    made[name] = array


def _check(name: str, array: NDArray[Any], size: tuple[int, ...], kind: str) -> None:
    if array.shape != size or array.dtype.name != kind:
        raise UserError(f"{name} is {array.dtype} {array.shape}, the model needs {kind} {size}")
    if kind.startswith("float") and not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or infinity; the file is damaged")


def by_rows(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Is every matrix int8 with one scale a row?"""
    found = {name: it for name, it in arrays.items() if it.ndim == 2 and not name.endswith("_scale")}
    return all(it.dtype == np.int8 and arrays[f"{name}_scale"].shape[1] == 1 for name, it in found.items())


def restored(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The float32 weights that the integers stand for."""
    return {
        name: rounding.restore(array, arrays[f"{name}_scale"]) if array.dtype == np.int8 else array
        for name, array in arrays.items()
        if not name.endswith("_scale")
    }

"""Checkpoints read without danlu."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open


def tensors(folder: Path) -> dict[str, bytes]:
    """Weights and optimizer states below a folder, each put together from its slices, byte for byte."""
    slices: dict[str, list[tuple[list[int], Any]]] = defaultdict(list)
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as reader:
            told = json.loads((reader.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for name in reader.keys():  # noqa: SIM118 - not a dict
                array = reader.get_tensor(name)
                slices[name].append((told[name]["saved_offsets"] if told else [0] * array.ndim, array))
    found = {}
    for name, parts in slices.items():
        if not name.startswith("random."):
            ends = [[offset + size for offset, size in zip(offsets, part.shape, strict=True)] for offsets, part in parts]
            whole = np.full([max(each) for each in zip(*ends, strict=True)], np.nan, np.float32)
            for (offsets, part), end in zip(parts, ends, strict=True):
                place = tuple(map(slice, offsets, end))
                assert np.isnan(whole[place]).all(), f"{name} is written twice at {offsets}"
                whole[place] = part
            assert not np.isnan(whole).any(), name
            found[name] = whole.tobytes()
    return found

"""Safetensors files, written tensor by tensor, so that a file never needs more memory than its largest tensor.

The format: eight bytes with the length of a JSON header, the header (type, shape and place of each tensor), then the bytes of the
tensors one after another. The library writes the same bytes, but wants all of the tensors in host memory at once, and hides a
full disk in the text of an error of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from danlu.pace import chunks

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.int8: "I8",
}


def write_file(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """One file with tensors from any device. OSError: the disk is full, or another failed write."""
    # Wide types first, so that every tensor begins at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with file.open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for _, tensor in ordered:
                flat = tensor.detach().to("cpu").contiguous().reshape(-1)
                content = flat.view(torch.uint8).numpy().data
                for piece in chunks(len(content)):
                    stream.write(content[piece])
    except OSError as error:
        error.filename = error.filename or str(file)  # a failed write leaves it out
        raise

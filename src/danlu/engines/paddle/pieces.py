"""Between tensors as files have them and the parameters, or the pieces of them, that this process holds.

Files have matrices as (output, input); paddle's linear layers have them as (input, output). Everything of the shape of a
parameter, a moment too, is turned with it. Tensor parallelism splits some tensors along one dimension, the file's here.
"""

from __future__ import annotations

import re
from typing import Any

from danlu.engines.paddle.layout import Layout
from danlu.engines.stored import Region

_EMBEDDING = "embed_tokens.weight"
_COLUMNS = re.compile(r"((q|k|v|gate|up)_proj\.(weight|bias|lora_B\.weight)|embed_tokens\.weight|lm_head\.weight)$")
_ROWS = re.compile(r"(o|down)_proj\.(lora_A\.)?weight$")


def is_turned(name: str, dimensions: int) -> bool:
    """Whether the tensor of that Hugging Face name is transposed in a file."""
    return dimensions == 2 and not name.endswith(_EMBEDDING)


def turned(name: str, array: Any) -> Any:
    """An array as the other side has it: from the file's axes to the parameter's, or back."""
    return array.T if is_turned(name, array.ndim) else array


def split_dimension(name: str) -> int | None:
    """Along which dimension of the file's tensor the tensor ranks split it; None: each has all of it."""
    return 0 if _COLUMNS.search(name) else 1 if _ROWS.search(name) else None


def own_region(name: str, shape: tuple[int, ...], layout: Layout) -> Region:
    """Which piece of a tensor of that shape (as files have it) this process's part of the model holds."""
    region = [slice(0, size) for size in shape]
    dimension = split_dimension(name)
    if layout.tensor > 1 and dimension is not None:
        region[dimension] = _chunk(region[dimension], layout.tensor, layout.tensor_rank)
    return tuple(region)


def written_region(name: str, shape: tuple[int, ...], layout: Layout, shared: bool) -> Region | None:
    """Which part of the own piece this process writes: ranks with the same piece share it out by rows. None: nothing of it.

    ``shared``: data ranks have the same. Needs no communication, and over all processes the regions cover the tensor once.
    """
    copies, number = (layout.data, layout.data_rank) if shared else (1, 0)
    if split_dimension(name) is None:
        copies, number = copies * layout.tensor, number * layout.tensor + layout.tensor_rank
    region = own_region(name, shape, layout)
    if not region:  # a number has no rows
        return region if number == 0 else None
    region = (_chunk(region[0], copies, number), *region[1:])
    return region if all(part.start < part.stop for part in region) else None


def _chunk(whole: slice, count: int, number: int) -> slice:
    """One of equal parts, but for the last ones, which may be smaller or empty."""
    size = -(-(whole.stop - whole.start) // count)
    return slice(min(whole.start + number * size, whole.stop), min(whole.start + (number + 1) * size, whole.stop))

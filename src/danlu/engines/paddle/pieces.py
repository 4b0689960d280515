"""Between tensors as files have them and the parameters that this process holds.

Files have matrices as (output, input); paddle's linear layers have them as (input, output). Everything of the shape of a
parameter, a moment too, is turned with it.
"""

from __future__ import annotations

from typing import Any

_EMBEDDING = "embed_tokens.weight"


def is_turned(name: str, dimensions: int) -> bool:
    """Whether the tensor of that Hugging Face name is transposed in a file."""
    return dimensions == 2 and not name.endswith(_EMBEDDING)


def turned(name: str, array: Any) -> Any:
    """An array as the other side has it: from the file's axes to the parameter's, or back."""
    return array.T if is_turned(name, array.ndim) else array

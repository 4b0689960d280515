"""How inner loops are compiled."""

from __future__ import annotations

from typing import Any

import numba as nb


def compiled(function: Any) -> Any:
    """Compile with Numba at the first call, and cache the code beside the file or in the user's cache folder.

    The function may run beside others in threads, and nothing checks its indices. A number that such a function hands on to
    another begins as np.int64(0): a plain 0 is a type of its own, for which the other would be compiled once more.
    """
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    try:
        return nb.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written: compile in every process
        return nb.njit(**options)(function)

"""The figures of a batch of texts, by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.quality.classes import classes


class Measures:
    """What was measured of some texts; `m[COLUMN]` is (texts,) float64, with the columns of `kernels.py`."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """`texts` are valid UTF-8."""
        from danlu.data.curate.quality import kernels  # compiled code is loaded where it is needed

        self._values = np.empty((len(texts), kernels.MEASURES))
        stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
        kernels.measure(np.frombuffer(b"".join(texts) or b"\0", np.uint8), stops, classes(), self._values)
        self.lines = self[kernels.LINES]
        """(texts,) float64: lines that are not empty."""
        self.unspaced: Array = 2 * self[kernels.UNSPACED] > self[kernels.LETTERS]
        """(texts,) bool: whether most letters are of scripts that put no blanks between words."""

    def __getitem__(self, column: int) -> Array:
        return self._values[:, column]

    def share(self, part: int, whole: int) -> Array:
        """One column over another; 0 where there is nothing."""
        return self[part] / np.maximum(self[whole], 1)

    def of_lines(self, part: int) -> Array:
        """One column over the lines; NaN, which no rule turns down, where there is one line or none."""
        found: Array = np.where(self.lines > 1, self[part] / np.maximum(self.lines, 1), np.nan)
        return found

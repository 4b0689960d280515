"""Histograms with 64 logarithmic bins: how the entries of a tensor, or lengths, are spread over the orders of magnitude.

Bins lie on one grid for all: their edges are 0 and the powers of the square root of 2, of either sign. A histogram holds 32 bins
a side, from the magnitude of its largest entry downwards; what is smaller than all of them is in the two bins beside 0. So two
histograms, whatever their ranges, have edges in common, and can be drawn one below the other without interpolation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BINS = 64
SIDE = BINS // 2
SMALLEST, LARGEST = -126, 128
"""Powers of the square root of 2 between which edges lie: magnitudes from 1.1e-19 to 1.8e19, whose squares float32 can hold."""
OCTAVES = 256
"""Half-octaves that `compressed` is given a side; the first holds 0 and all that is smaller, the last what is not finite."""

Counts = npt.NDArray[np.int64]


class Histogram(NamedTuple):
    """Entries by value: ``counts`` (64) from the most negative to the most positive.

    Magnitudes of bin 32 + i are in [edge i, edge i + 1) of 0, 2^((exponent - 31)/2), ..., 2^(exponent/2); bin 31 - i is the
    mirror image. Zeros are in bin 32. ``not_finite`` counts NaN and infinities, and magnitudes beyond the grid.
    """

    exponent: int
    counts: Counts
    not_finite: int = 0

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The 65 edges, rising."""
        return edges(self.exponent)


def edges(exponent: int) -> npt.NDArray[np.float64]:
    """The 65 edges of a histogram of that exponent, rising: from -2^(exponent/2) to 2^(exponent/2)."""
    positive = 2.0 ** (np.arange(exponent - SIDE + 1, exponent + 1) / 2)
    return np.concatenate((-positive[::-1], [0.0], positive))


def histogram(values: npt.ArrayLike) -> Histogram:
    """Of an array's entries."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    finite = np.isfinite(flat) & (np.abs(flat) < 2.0 ** (LARGEST / 2))
    magnitudes = np.abs(flat[finite])
    limits = 2.0 ** (np.arange(SMALLEST, LARGEST + 1) / 2)  # the grid
    place = np.searchsorted(limits, magnitudes, side="right")  # 0: below the grid
    sides = np.bincount(place + OCTAVES * (flat[finite] < 0), minlength=2 * OCTAVES).reshape(2, OCTAVES)
    return compressed(sides, flat.size - int(finite.sum()))


def compressed(sides: npt.NDArray[np.integer], not_finite: int = 0) -> Histogram:
    """From counts (2, 256) by half-octave, those of positive entries first: half-octave k >= 1 holds magnitudes in
    [2^((k - 127)/2), 2^((k - 126)/2)), 0 what is smaller. The last one, 255, is left out: what is there is not finite.
    """
    used = np.flatnonzero(sides[:, : OCTAVES - 1].sum(axis=0))
    top = max(int(used[-1]) if len(used) else 0, SIDE - 1)
    kept = sides[:, top - SIDE + 1 : top + 1].astype(np.int64)
    kept[:, 0] += sides[:, : top - SIDE + 1].sum(axis=1)
    return Histogram(top - OCTAVES // 2 + 2, np.concatenate((kept[1, ::-1], kept[0])), not_finite)


def quantile(found: Histogram, share: float) -> float:
    """The value below which this share of the entries lies, by linear interpolation inside a bin; NaN of an empty one."""
    total = int(found.counts.sum())
    if not total:
        return math.nan
    heights = np.concatenate(([0], np.cumsum(found.counts))) / total
    return float(np.interp(share, heights, found.edges))

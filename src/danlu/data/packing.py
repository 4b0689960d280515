"""Which tokens go into which sample: windows of a text that runs on, or whole conversations."""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.data.stream import TokenStream


def windows(stream: TokenStream, length: int) -> tuple[Array, Array]:
    """First token and end of every sample of `length` inputs, int64, in the stream's order.

    Plain text is cut every `length` tokens, with the next one as the last target. Conversations stay whole, as many behind one
    another as fit; what is left of a sample is filled up, and one that is longer is cut. So do pairs of answers.
    """
    if not stream.masked:
        starts = np.arange(0, max(0, stream.tokens - 1), length)
        return starts, np.minimum(starts + length + 1, stream.tokens)
    begins = stream.document_starts(0, stream.tokens)[:: stream.together]
    ends = np.append(begins[1:], stream.tokens)
    firsts: list[int] = []
    stops: list[int] = []
    at = 0
    while at < len(begins):
        # The last token of a sample is a target alone, so that there may be one more than inputs.
        behind = max(at + 1, int(np.searchsorted(ends, begins[at] + length + 1, side="right")))
        firsts.append(int(begins[at]))
        stops.append(int(min(ends[behind - 1], begins[at] + length + 1)))
        at = behind
    return np.array(firsts, np.int64), np.array(stops, np.int64)

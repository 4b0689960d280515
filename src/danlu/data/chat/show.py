"""Samples as a person reads them, with what is supervised in brackets."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np

from danlu.data import tokenizer as tokenizers
from danlu.data.prepared import Prepared

OPEN, CLOSE = "⟦", "⟧"


def shown(prepared: Prepared, count: int) -> list[str]:
    """The first training documents; of plain text every token is supervised but the first."""
    stream, tokenizer = prepared.train, tokenizers.load(prepared.folder)
    begins = np.append(stream.document_starts(0, stream.tokens), stream.tokens).tolist()
    made = []
    for start, stop in list(pairwise(begins))[:count]:
        ids = stream.window(start, stop - start).tolist()
        told = stream.supervised(start, stop - start).tolist() if stream.masked else [False, *[True] * (len(ids) - 1)]
        text = ""
        for learned, group in groupby(zip(told, ids, strict=True), key=lambda pair: pair[0]):
            part = tokenizer.decode([number for _, number in group])
            text += f"{OPEN}{part}{CLOSE}" if learned else part
        made.append(f"{text}\n({len(ids)} tokens, {sum(told)} supervised)")
    return made

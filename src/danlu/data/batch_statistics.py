"""What a batch consists of: targets, padding, repetition, and the lengths of its documents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.batches import IGNORED, Batch

RUN = 32
"""Tokens of a run that is looked for elsewhere in the batch: long enough not to recur by chance."""
_FACTORS = np.random.default_rng(0).integers(0, 2**63, RUN, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


class BatchStatistics(NamedTuple):
    """Shares of all positions of the batch, and of all runs of RUN tokens in it."""

    supervised: float
    """Positions that have a target."""
    padding: float
    """Positions at the end of a sample that belong to no text."""
    duplicate: float
    """Runs that stand in the batch before, in the same sample or in another; 0 where samples are shorter than a run."""
    lengths: Array | None
    """Lengths of the documents, or of the parts of them that the batch holds; None where they are not told apart."""


def batch_statistics(batch: Batch) -> BatchStatistics:
    """Of arrays as ``TrainingBatches`` makes them, (micro_batches, micro_batch, sequence_length)."""
    inputs = np.asarray(batch["inputs"])
    inputs = inputs.reshape(-1, inputs.shape[-1])
    targets = np.asarray(batch["targets"]).reshape(inputs.shape)
    used = (targets != IGNORED) | (inputs != 0)
    text = np.where(used.any(1), inputs.shape[1] - used[:, ::-1].argmax(1), 0)  # what follows has token 0 and no target
    text[text == inputs.shape[1] - 1] += 1  # where one position follows, it may as well be the end of a document
    padding = 1 - text.sum() / inputs.size
    documents = batch.get("documents")
    lengths = None if documents is None else _lengths(np.asarray(documents).reshape(inputs.shape), text)
    return BatchStatistics(float((targets != IGNORED).mean()), float(padding), _duplicate(inputs, text), lengths)


def _duplicate(inputs: Array, text: Array) -> float:
    runs = inputs.shape[1] - RUN + 1
    if runs < 1:
        return 0.0
    tokens = inputs.astype(np.uint64)
    # Multilinear hashing modulo 2^64: two different runs agree with a probability of about 2^-63.
    sums = sum(tokens[:, at : at + runs] * _FACTORS[at] for at in range(RUN))
    whole = np.arange(runs) + RUN <= text[:, None]
    found = np.asarray(sums)[whole]
    return 1 - len(np.unique(found)) / len(found) if len(found) else 0.0


def _lengths(documents: Array, text: Array) -> Array:
    rows = [np.unique(row[:end], return_counts=True)[1] for row, end in zip(documents, text, strict=True)]
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)

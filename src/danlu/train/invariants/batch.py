"""What a batch is made of: one pass over its token ids on the host, every step."""

from __future__ import annotations

import zlib

import numpy as np

from danlu.engines.base import Batch

IGNORED = -100
HASH_BITS = 48
"""A float64 holds that many exactly, and the metrics store holds float64."""


def of_batch(batch: Batch, end_id: int) -> dict[str, float]:
    """Shares of this process's part of a batch, whose arrays are (..., sequence_length).

    ``batch/supervised``: tokens with a target. ``batch/target_offset_k`` for k of 0, 1, 2: targets that are the token k places
    behind their input. ``batch/end_supervised``: ends of documents that are a target. ``batch/neighbours``: samples that go on
    where the one before ends, as they do without shuffling. ``batch/entropy``: of the tokens' frequencies, in nats.
    A share of nothing is left out.
    """
    inputs, targets = rows(batch["inputs"]), rows(batch["targets"])
    supervised = targets != IGNORED
    found = {"batch/supervised": float(supervised.mean())}
    inner = supervised[:, :-2] if inputs.shape[1] > 2 else supervised[:, :0]
    if inner.any():
        for offset in range(3):
            moved = inputs[:, offset : offset + inner.shape[1]]
            found[f"batch/target_offset_{offset}"] = float((targets[:, : inner.shape[1]] == moved)[inner].mean())
    ends = inputs[:, 1:] == end_id
    if ends.any():
        found["batch/end_supervised"] = float(supervised[:, :-1][ends].mean())
    if len(inputs) > 1:
        known = supervised[:-1, -1]
        if known.any():
            found["batch/neighbours"] = float((targets[:-1, -1] == inputs[1:, 0])[known].mean())
    counts = np.bincount(inputs.reshape(-1))
    shares = counts[counts > 0] / inputs.size
    found["batch/entropy"] = float(-(shares * np.log(shares)).sum())
    return found


def rows(array: object) -> np.ndarray:
    """(rows, sequence_length), whatever the micro-batches; no copy of a tensor in host memory."""
    made = np.asarray(array)
    return made.reshape(-1, made.shape[-1])


def hashed(inputs: np.ndarray) -> list[int]:
    """A number of HASH_BITS for each row of tokens (rows, sequence_length)."""
    made = []
    for row in np.ascontiguousarray(inputs):
        data = row.tobytes()
        made.append((zlib.crc32(data) << 16 | zlib.adler32(data) & 0xFFFF) & (1 << HASH_BITS) - 1)
    return made

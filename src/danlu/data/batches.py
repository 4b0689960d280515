"""Batches of token windows, as arrays that any framework takes over without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Protocol

import numpy as np

from danlu.data.arrays import Array
from danlu.data.order import sample_indices
from danlu.data.packing import windows
from danlu.data.stream import TokenStream

Batch = dict[str, Array]
IGNORED = -100
"""Target of a position that is not trained on, as the frameworks' cross entropies know it."""


class Beside(Protocol):
    """What else is known of samples."""

    def of(self, indices: Array) -> Batch:
        """Arrays (samples, ...) for samples by their number in the epoch."""


class TrainingBatches:
    """The batch of any step, computed from (seed, step) alone.

    Sample i is tokens [i L, i L + L + 1) of the stream, L = sequence_length, so that every token but the first is a target
    once an epoch (up to L - 1 tokens at the stream's end make no whole sample and are left out). Steps run on from one
    epoch into the next. Rank r gets the r-th of world_size equal slices of a step's samples, so the step has the same
    samples on any number of ranks. Of conversations, samples hold whole ones: see ``packing.windows``.

    Raises:
        ValueError: the stream holds no sample, global_batch is no multiple of micro_batch * world_size, or no such rank.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        sequence_length: int,
        global_batch: int,
        micro_batch: int,
        document_mask: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        beside: Beside | None = None,
    ) -> None:
        if global_batch % (micro_batch * world_size):
            raise ValueError(f"global_batch {global_batch} is no multiple of micro_batch {micro_batch} x world_size {world_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of world_size {world_size}")
        self._windows = windows(stream, sequence_length) if stream.masked else None
        self.samples = (stream.tokens - 1) // sequence_length if self._windows is None else len(self._windows[0])
        """Samples an epoch."""
        if self.samples < 1:
            raise ValueError(f"{stream.tokens} tokens hold no sample of sequence_length {sequence_length}")
        self.steps_per_epoch = -(-self.samples // global_batch)
        """Steps after which every sample has been used."""
        self._stream, self._length, self._seed, self._document_mask = stream, sequence_length, seed, document_mask
        self._global_batch, self._micro_batch, self._beside = global_batch, micro_batch, beside
        self._mine = global_batch // world_size
        self._first = rank * self._mine

    def whole(self) -> TrainingBatches:
        """The same batches, those of all ranks together."""
        whole = copy(self)
        whole._first, whole._mine = 0, self._global_batch
        return whole

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step >= 0: arrays (micro_batches, micro_batch, sequence_length).

        "samples" int64 (micro_batches, micro_batch): the how manieth sample of the run each is, whatever rank it falls to;
        "inputs" and "targets" int64 (-100: not trained on); with document_mask also "positions" int64, which begin anew with
        each document, and "documents" int32, which number the documents inside a sample from 0. And what ``beside`` has.
        """
        if step < 0:
            raise IndexError(f"step {step}")
        first = step * self._global_batch + self._first
        numbers = np.arange(first, first + self._mine)
        indices = sample_indices(numbers, self.samples, self._seed)
        batch = self.of(indices) | (self._beside.of(indices) if self._beside is not None else {})
        made = {name: array.reshape(-1, self._micro_batch, *array.shape[1:]) for name, array in batch.items()}
        return made | {"samples": numbers.reshape(-1, self._micro_batch)}

    def of(self, indices: Array) -> Batch:
        """The same arrays (samples, sequence_length) for samples by their number in the epoch, before their order is drawn."""
        if self._windows is None:
            starts = indices * self._length
            ends = starts + self._length + 1
        else:
            starts, ends = (each[indices] for each in self._windows)
        return _assemble(self._stream, starts, ends, self._length, self._document_mask)


def evaluation_batches(
    stream: TokenStream, *, sequence_length: int, batch: int, document_mask: bool, max_tokens: int | None = None
) -> Iterator[Batch]:
    """Every target of the stream once, in order, in arrays (batch, sequence_length) named as those of TrainingBatches.

    The last batch is filled up with targets of -100. With max_tokens, at most that many targets: whole windows spread
    evenly over the stream, the same ones at every call.
    """
    targets = max(0, stream.tokens - 1)
    starts, ends = windows(stream, sequence_length)
    chosen, cut = np.arange(len(starts)), sequence_length
    if max_tokens is not None and max_tokens < targets:
        count, cut = max(1, max_tokens // sequence_length), min(sequence_length, max_tokens)
        whole = len(starts) if stream.masked else max(1, targets // sequence_length)
        chosen = np.unique(np.arange(count) * whole // count)
    for at in range(0, len(chosen), batch):
        rows_at = chosen[at : at + batch]
        made = _assemble(stream, starts[rows_at], ends[rows_at], sequence_length, document_mask)
        made["targets"][:, cut:] = IGNORED
        missing = batch - len(made["inputs"])
        if missing:
            filler = {"inputs": 0, "targets": IGNORED, "positions": np.arange(sequence_length), "documents": 0}
            for name, array in made.items():
                rows = np.broadcast_to(np.asarray(filler[name], array.dtype), (missing, sequence_length))
                made[name] = np.concatenate([array, rows])
        yield made


def _assemble(stream: TokenStream, starts: Array, ends: Array, length: int, document_mask: bool) -> Batch:
    """Arrays (samples, length) for windows of at most length + 1 tokens; behind their ends, inputs are 0 and targets -100."""
    tokens = np.zeros((len(starts), length + 1), np.int64)
    begins = np.zeros((len(starts), length + 1), bool)
    supervised = np.zeros_like(begins)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        tokens[row, : end - start] = stream.window(start, end - start)
        if stream.masked:
            supervised[row, : end - start] = stream.supervised(start, end - start)
        if document_mask:
            begins[row, stream.document_starts(start, end) - start] = True
    inputs, targets = tokens[:, :-1].copy(), tokens[:, 1:].copy()  # two arrays, since one of them is changed below
    targets[np.arange(1, length + 1) >= (ends - starts)[:, None]] = IGNORED
    if stream.masked:
        targets[~supervised[:, 1:]] = IGNORED
    if not document_mask:
        return {"inputs": inputs, "targets": targets}
    # The first token of the next document does not follow from the end of this one.
    targets[begins[:, 1:]] = IGNORED
    begins = begins[:, :-1]
    begins[:, 0] = True
    columns = np.arange(length)
    return {
        "inputs": inputs,
        "targets": targets,
        "positions": columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1),
        "documents": np.cumsum(begins, axis=1, dtype=np.int32) - 1,
    }

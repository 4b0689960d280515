"""What the model makes of batches that are made up to tell: some forward passes over a few rows, seldom."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from danlu.data.arrays import Array
from danlu.engines.base import Engine
from danlu.train.invariants.batch import IGNORED, rows

Arrays = Mapping[str, Array]
PASSES = 10
"""Over the rows that are tried; two more go over the whole batch."""
SHARE = 0.004
"""Of the steps' work that the passes may take, once the run is under way."""
EARLY = (0, 10, 20, 50, 100, 200)
"""Steps since the start at which they are made in any case: what is wrong from the start is to be said at the start."""


def interval(rows: int, global_batch: int, more: int = 0) -> int:
    """Steps between probes, such that their forward passes are SHARE of the steps', each of which has three a row.

    ``more`` are those over the rows that something else makes at these steps.
    """
    return max(100, math.ceil(((PASSES + more) * rows / global_batch + 2) / 3 / SHARE))


class Probe:
    """The questions, asked of an engine. All processes ask them at the same steps, of the same rows."""

    def __init__(self, engine: Engine, rows: int, positions: int, document_mask: bool, whole_batch: bool) -> None:
        """``rows`` are tried; ``positions`` the model is made for. ``whole_batch``: its loss must be that of the step."""
        self.engine, self.rows, self.positions = engine, rows, positions
        self.document_mask, self.whole_batch = document_mask, whole_batch

    def measure(self, batch: Arrays) -> dict[str, float]:
        """Losses in nats a token of a whole global batch ahead of its step, and by how much they move when they must not.

        ``probe/batch_loss``: of the whole batch. ``probe/offset_k``: with the token k places behind the input as the target.
        ``probe/again``: the difference of two evaluations of the same. ``probe/future``, ``probe/document``: by how much other
        tokens behind, and in the document before, move the loss. ``probe/far``: by how much it moves with all positions, as
        rotary embeddings must not let it. ``probe/unplaced``: by how much when all positions are 0, as it must.
        """
        whole = {name: rows(array) for name, array in batch.items() if name != "samples"}
        found = {"probe/batch_loss": self._loss(whole)} if self.whole_batch else {}
        few = {name: array[: self.rows] for name, array in whole.items()}
        inputs = few["inputs"]
        length = inputs.shape[1]
        half = length // 2
        plain = self._made(inputs, _following(inputs, 1))
        loss = self._loss(plain)
        found["probe/again"] = abs(self._loss(plain) - loss)
        found["probe/offset_1"] = loss
        for offset in (0, 2):
            found[f"probe/offset_{offset}"] = self._loss(self._made(inputs, _following(inputs, offset)))
        far = max(self.positions, 2 * length) - length
        found["probe/far"] = abs(self._loss(plain | {"positions": plain["positions"] + far}) - loss)
        found["probe/unplaced"] = abs(self._loss(plain | {"positions": 0 * plain["positions"]}) - loss)
        early = plain | {"targets": np.where(np.arange(length) < half - 1, plain["targets"], IGNORED)}
        changed = inputs.copy()
        changed[:, half:] = inputs[:, half:][:, ::-1]
        found["probe/future"] = abs(self._loss(early | {"inputs": changed}) - self._loss(early))
        if self.document_mask:
            found["probe/document"] = self._across(plain, half)
        return found

    def again(self, batch: Arrays) -> dict[str, float]:
        """After the step of this batch. ``probe/batch_loss_after``: of the whole batch."""
        whole = {name: rows(array) for name, array in batch.items() if name != "samples"}
        return {"probe/batch_loss_after": self._loss(whole)} if self.whole_batch else {}

    def _across(self, plain: Arrays, half: int) -> float:
        """Two documents a row: what the second one's loss owes to the first one's tokens."""
        inputs = plain["inputs"]
        length = inputs.shape[1]
        behind = np.arange(length) >= half
        place = np.broadcast_to(np.where(behind, np.arange(length) - half, np.arange(length)), inputs.shape)
        late = {
            "inputs": inputs,
            "targets": np.where(behind, plain["targets"], IGNORED),
            "positions": np.ascontiguousarray(place),
            "documents": np.ascontiguousarray(np.broadcast_to(behind, inputs.shape).astype(np.int32)),
        }
        changed = inputs.copy()
        changed[:, :half] = inputs[:, :half][:, ::-1]
        return abs(self._loss({**late, "inputs": changed}) - self._loss(late))

    def _made(self, inputs: Array, targets: Array) -> dict[str, Array]:
        """Rows of one document each."""
        place = np.ascontiguousarray(np.broadcast_to(np.arange(inputs.shape[1]), inputs.shape))
        made = {"inputs": inputs, "targets": targets, "positions": place}
        return made | {"documents": np.zeros(inputs.shape, np.int32)} if self.document_mask else made

    def _loss(self, batch: Arrays) -> float:
        nats, supervised = self.engine.evaluate(batch)
        return nats / supervised if supervised else math.nan


def _following(inputs: Array, offset: int) -> Array:
    """As targets, the tokens so many places behind; none for the last two of a row, so that all offsets have as many."""
    targets = np.full_like(inputs, IGNORED)
    targets[:, :-2] = inputs[:, offset : inputs.shape[1] - 2 + offset]
    return targets

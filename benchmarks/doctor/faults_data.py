"""Faults of the data: labels, masks, order, damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.doctor.fault import BASES, PLAIN, RESUMED, Fault, Plant, rules
from danlu.data import batches
from danlu.data.batches import TrainingBatches
from danlu.train import validation

IGNORED = -100
Change = Callable[[TrainingBatches, int, dict[str, Any]], None]


def changed(change: Change) -> Plant:
    """Every training batch is changed on its way to the trainer."""
    honest = TrainingBatches.__getitem__

    def wrong(self: TrainingBatches, step: int) -> dict[str, Any]:
        batch = honest(self, step)
        change(self, step, batch)
        return batch

    return lambda: patch.object(TrainingBatches, "__getitem__", wrong)


def ordered(order: Callable[[Any, int, int], Any]) -> Plant:
    """Samples come in another order."""
    return lambda: patch.object(batches, "sample_indices", order)


def _shifted_twice(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    targets = batch["targets"]
    targets[..., :-1] = targets[..., 1:].copy()


def _not_shifted(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    batch["targets"][:] = batch["inputs"]


def _of_other_samples(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    targets = batch["targets"].reshape(-1, batch["targets"].shape[-1])
    targets[:] = np.roll(targets, 1, axis=0)


def _all_masked_later(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    if step >= 60:
        batch["targets"][:] = IGNORED


def _nearly_all_masked(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    batch["targets"][..., 1:] = IGNORED
    batch["targets"].reshape(-1, batch["targets"].shape[-1])[1:, :] = IGNORED


def end_masked(source: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    following = np.roll(batch["inputs"], -1, axis=-1)
    following[..., -1] = -1
    end = END[0]
    batch["targets"][following == end] = IGNORED
    batch["targets"][..., -1][batch["targets"][..., -1] == end] = IGNORED


def _validates_on_training_data() -> AbstractContextManager[Any]:
    honest = validation.evaluation_batches
    return patch.object(validation, "evaluation_batches", lambda _stream, **named: honest(TRAIN[0], **named))


TRAIN: list[Any] = [None]
"""The training data of the run; the harness sets it."""
END = [0]
"""The end-of-document token of the runs' tokenizer; the harness sets it."""


def _noise(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    if 80 <= step < 110:
        random = np.random.default_rng(step)
        _replace(batch, random.integers(0, 400, batch["inputs"].shape))


def _one_token(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    if 80 <= step < 110:
        _replace(batch, np.full(batch["inputs"].shape, 7))


def _escapes(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    """A few tokens over and over, as text that was escaped twice has."""
    if 80 <= step < 110:
        pattern = np.resize(np.array([11, 12, 11, 13]), batch["inputs"].shape[-1])
        _replace(batch, np.broadcast_to(pattern, batch["inputs"].shape))


def _replace(batch: dict[str, Any], tokens: Any) -> None:
    batch["inputs"][:] = tokens
    supervised = batch["targets"][..., :-1] != IGNORED
    batch["targets"][..., :-1][supervised] = tokens[..., 1:][supervised]


def _workers_share_a_seed(_: TrainingBatches, step: int, batch: dict[str, Any]) -> None:
    for name, array in batch.items():
        if name != "samples":
            rows = array.reshape(-1, array.shape[-1])
            rows[len(rows) // 2 :] = rows[: len(rows) // 2]


def _each_batch_twice() -> AbstractContextManager[Any]:
    honest = TrainingBatches.__getitem__
    return patch.object(TrainingBatches, "__getitem__", lambda self, step: honest(self, step - step % 2))


@contextmanager
def _restarts() -> Iterator[None]:
    """The harness plants it at the resume alone."""
    honest = TrainingBatches.__getitem__
    with patch.object(TrainingBatches, "__getitem__", lambda self, step: honest(self, step - RESUMED)):
        yield


def _repeated_epochs(positions: Any, samples: int, seed: int) -> Any:
    from danlu.data.order import permute

    return permute(positions % samples, samples, seed, 0)


def _few_samples(positions: Any, samples: int, seed: int) -> Any:
    """A sampler that draws with replacement from a small part."""
    random = np.random.default_rng(int(positions[0]))
    return random.integers(0, max(8, samples // 100), positions.shape)


def _unshuffled(positions: Any, samples: int, seed: int) -> Any:
    return positions % samples


FAULTS = (
    Fault("labels shifted twice", "targets are the tokens after the next", rules("label_offset"), PLAIN, changed(_shifted_twice)),
    Fault("labels not shifted", "targets are the inputs", rules("label_offset"), PLAIN, changed(_not_shifted)),
    Fault(
        "labels of other samples", "targets belong to the sample before", rules("label_offset"), PLAIN, changed(_of_other_samples)
    ),
    Fault(
        "all masked",
        "from step 61 on no token has a target",
        rules("unsupervised"),
        PLAIN,
        changed(_all_masked_later),
        visible=61,
    ),
    Fault("nearly all masked", "one token of a batch has a target", rules("unsupervised"), PLAIN, changed(_nearly_all_masked)),
    Fault("end masked", "the end-of-document token is taken for padding", rules("end_unsupervised"), PLAIN, changed(end_masked)),
    Fault("noise in a shard", "batches 81 to 110 are random tokens", rules("odd_batches"), PLAIN, changed(_noise), visible=81),
    Fault(
        "one token in a shard", "batches 81 to 110 are one token", rules("odd_batches"), PLAIN, changed(_one_token), visible=81
    ),
    Fault("escapes in a shard", "batches 81 to 110 are four tokens", rules("odd_batches"), PLAIN, changed(_escapes), visible=81),
    Fault(
        "workers share a seed",
        "half of a batch is the other half",
        rules("repeated_samples"),
        PLAIN,
        changed(_workers_share_a_seed),
    ),
    Fault("batches twice", "each batch comes twice in a row", rules("repeated_samples"), PLAIN, _each_batch_twice, visible=2),
    Fault("few samples", "a hundredth of the samples is drawn from", rules("repeated_samples"), PLAIN, ordered(_few_samples)),
    Fault(
        "validation on training data",
        "the wrong file is opened",
        rules("held_out_batches"),
        PLAIN,
        _validates_on_training_data,
    ),
    Fault(
        "not shuffled", "samples in the order of the text", rules("unshuffled", "order_of_samples"), PLAIN, ordered(_unshuffled)
    ),
    Fault(
        "same order every epoch",
        "the permutation of the first epoch again",
        rules("fixed_order"),
        BASES["epochs"],
        ordered(_repeated_epochs),
        visible=78,
    ),
    Fault(
        "data restarts at resume",
        "the position in the data is not restored",
        rules("replayed_data"),
        BASES["resumed"],
        _restarts,
        visible=RESUMED + 1,
    ),
)

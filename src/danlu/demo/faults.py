"""What can be wrong with the run of a demo: another recipe, or a mistake in the real engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    says: str
    overrides: tuple[str, ...] = ()
    mistake: str | None = None
    """See danlu.engines.torch.mistakes."""


FAULTS = {
    "none": Fault("nothing: the doctor has nothing to say"),
    "lr-too-high": Fault("a learning rate 300 times too high", ("train.optimizer.learning_rate=1.0",)),
    "lr-too-low": Fault("a learning rate 3,000 times too low", ("train.optimizer.learning_rate=1e-6",)),
    "labels-shifted-twice": Fault("every label is the token after the next", (), "shifted labels"),
    "damaged-shard": Fault("batches 81 to 110 are random tokens", (), "damaged batches"),
    "damaged-shard-rollback": Fault(
        "the same, and the run goes back and leaves them out",
        ("doctor.on_critical=rollback", "checkpoint.every=20", "train.optimizer.learning_rate=1e-2"),
        "damaged batches",
    ),
    "repeated-data": Fault("loader workers share a random seed: half of every batch is the other half", (), "repeated samples"),
    "frozen-layer": Fault("the second layer needs no gradient", (), "frozen layer"),
    "gradients-not-zeroed": Fault("the gradients of all steps add up", (), "kept gradients"),
}

"""What a fault is: a recipe, and one thing that goes wrong in the real trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

Plant = Callable[[], AbstractContextManager[Any]]
"""Something that is wrong inside the `with`, and right again after it."""

STEPS = 200
RESUMED = 100
"""Step after which the runs that are resumed begin anew."""
CURVE = "curve"
"""The fault can first be seen where the loss leaves that of the twin."""


@dataclass(frozen=True)
class Base:
    """A small healthy recipe: overrides of the plain one, and how it is run."""

    name: str
    overrides: tuple[str, ...] = ()
    documents: int = 3000
    resumed: bool = False
    tuned: bool = False
    """Answers of conversations are learned, from weights that have learned the text they are made of."""
    processes: int = 1


@dataclass(frozen=True)
class Fault:
    """One switch. `names` are the rules that name its cause; its twin is the base without the switch."""

    id: str
    says: str
    names: frozenset[str]
    base: Base
    plant: Plant = nullcontext
    overrides: tuple[str, ...] = ()
    visible: int | str = 1
    """First step at which it can be seen; CURVE: where the loss leaves that of the twin."""
    documents: int | None = None
    grammar: int = 1
    """Of the text that is trained on."""


@dataclass
class Outcome:
    """What the doctor said in one run."""

    told: list[tuple[int, str, str, str]] = field(default_factory=list)
    """(step, rule, severity, verdict) as the run went on, of warning or above."""
    losses: list[float] = field(default_factory=list)
    ended: str = ""
    """Why the run stopped itself, if it did."""


def rules(*names: str) -> frozenset[str]:
    """The rules that name a cause."""
    return frozenset(names)


PLAIN = Base("plain")
BASES = {
    base.name: base
    for base in (
        PLAIN,
        Base("accumulated", ("memory.micro_batch=2",)),
        Base("tied", ("model.tied_embeddings=true",)),
        Base("dropout", ("train.dropout=0.1",)),
        Base("bf16", ("train.precision=bf16",)),
        Base("fp16", ("train.precision=fp16", "train.steps=120", "train.global_batch=4")),
        Base("epochs", ("train.steps=200",), documents=240),
        Base("resumed", (), resumed=True),
        Base("gentle", ("train.optimizer.learning_rate=1e-3", "train.optimizer.weight_decay=0")),
        Base("tuned", ("train.optimizer.learning_rate=3e-4", "train.steps=100", "data.sequence_length=128"), tuned=True),
        Base("two ranks", ("parallel.data=2", "watch.replica_check_every=10", "train.steps=80"), processes=2),
    )
}

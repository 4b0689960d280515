"""What a rule sees of a run: signals by name, and settings that are known. What is missing stays missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from danlu.doctor.series import Series
from danlu.watch.names import SIGNALS

LOSS = "train/loss"
"""Loss of the step, on its own batch."""
EVALUATED = "train/evaluated_loss"
"""Loss on a fixed part of the training data, measured as the validation loss is."""
VALIDATION = "validation/loss"
GRADIENT = "train/gradient_norm"
RATE = "train/learning_rate"
RATE_SETTING = "train.optimizer.learning_rate"
SCALE = "train/loss_scale"
SPEED = "train/tokens_per_second"
STEP = "time/step"
DATA_WAIT = "time/data_wait"
COMMUNICATION = "time/communication"
IDLE = "time/pipeline_idle"

INVARIANTS = ("batch", "optimizer", "probe", "retained", "sample", "weights")
"""Groups of signals that are measured for the doctor alone."""

MEANINGS = {
    LOSS: "loss of the step's own batch",
    EVALUATED: "loss on training data, measured as the validation loss is",
    VALIDATION: "loss on held-out data",
    GRADIENT: "global gradient norm before clipping",
    RATE: "learning rate of the step",
    SCALE: "factor of the fp16 loss scaling",
    SPEED: "tokens a second over all processes",
    STEP: "seconds of a step",
    DATA_WAIT: "seconds of a step that it waited for its batch",
    COMMUNICATION: "seconds of a step that it waited for other processes",
    IDLE: "seconds of a step that a pipeline stage had nothing to do",
    "memory/device_bytes": "device memory in use",
    "memory/resident_bytes": "memory of the process",
    "time/communication@N": "seconds of a step that rank N waited for the others",
    "layer/NAME/gradient_norm": "gradient norm of one layer",
    "layer/NAME/update_ratio": "RMS of a layer's update / RMS of its weights",
    **{name: meaning for name, meaning in SIGNALS.items() if name.split("/")[0] in INVARIANTS},
}
"""Every signal a rule reads, and what it has to hold. They are danlu's own names; imported logs are renamed to them."""


class NotEnoughData(Exception):
    """A rule cannot judge: a signal is missing or too short. The message says which."""


@dataclass(frozen=True)
class Evidence:
    """A run, finished or live, or an imported log."""

    signals: Mapping[str, Series]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are known, by their dotted recipe field; a setting that is not known has no entry."""
    resumes: Sequence[int] = ()
    """First steps of the segments after the first."""
    own: bool = False
    """A run of danlu's: every step has the same tokens and the same model, the step loss holds no dropout and no smoothing, and
    validation documents are drawn from the same text by a hash. Of another log none of that is known."""
    memory_limits: Mapping[str, float] = field(default_factory=dict)
    """Bytes at which a memory signal overflows, where that is known."""
    name: str = ""

    @property
    def on_cpu(self) -> bool:
        """Whether the model trains on a CPU, whose cores it shares with its loader and with other programs."""
        return str(self.facts.get("train.device")).startswith("cpu")

    def get(self, name: str, points: int = 1) -> Series | None:
        """The signal, or None where it is missing or has fewer finite points."""
        found = self.signals.get(name)
        return found if found is not None and len(found.finite) >= points else None

    def need(self, name: str, points: int = 1) -> Series:
        """The signal. NotEnoughData: it is missing or has fewer finite points."""
        found = self.signals.get(name)
        if found is None:
            raise NotEnoughData(f"{name} is not recorded")
        if len(found.finite) < points:
            raise NotEnoughData(f"{name}: {len(found.finite)} points, {points} are needed")
        return found

    def matching(self, prefix: str, suffix: str, points: int = 1) -> dict[str, Series]:
        """Signals named prefix + something + suffix that have as many finite points, by that something."""
        return {
            name[len(prefix) : len(name) - len(suffix)]: one
            for name, one in self.signals.items()
            if name.startswith(prefix) and name.endswith(suffix) and len(one.finite) >= points
        }

    def number(self, *names: str) -> float | None:
        """The first of these settings that is known and a finite number."""
        for name in names:
            value = self.facts.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return float(value)
        return None

    def last_step(self) -> int:
        """The largest step that any signal has."""
        return max((int(one.steps[-1]) for one in self.signals.values() if len(one)), default=0)

    def scaled(self, name: str, factor: float) -> dict[str, float]:
        """A patch that multiplies a setting, to two digits; empty where the setting is not known."""
        value = self.number(name)
        return {} if value is None else {name: float(f"{factor * value:.2g}")}

    def current(self, name: str, points: int = 1) -> Series | None:
        """A loss that reaches into the last tenth of what the losses cover; one that ended before says nothing of the end."""
        found = self.get(name, points)
        last = max((int(one.steps[-1]) for one in self.losses(1).values()), default=0)
        return found if found is not None and found.steps[-1] >= 0.9 * last else None

    def until(self, share: float) -> Evidence:
        """What was there when this share of the run's steps was done."""
        last = share * max((int(one.steps[-1]) for one in self.signals.values() if len(one)), default=0)
        cut = {name: one.between(0, last) for name, one in self.signals.items()}
        return replace(self, signals={name: one for name, one in cut.items() if len(one)})

    def losses(self, points: int) -> dict[str, Series]:
        """The loss curves that are there and long enough."""
        return {name: one for name in (LOSS, EVALUATED, VALIDATION) if (one := self.get(name, points)) is not None}

    def warmup_end(self) -> int | None:
        """Step at which the learning rate has reached its peak; None where neither a setting nor the curve tells."""
        if (steps := self.number("train.schedule.warmup_steps")) is not None:
            return round(steps)
        fraction, total = self.number("train.schedule.warmup_fraction"), self.number("train.steps")
        if fraction is not None and total is not None:
            return round(fraction * total)
        rate = self.get(RATE, 10)
        if rate is None:
            return None
        values = rate.finite.values
        peak = int(values.argmax())
        known = values[0] < 0.5 * values[peak] and peak < len(values) - 1
        return int(rate.finite.steps[peak]) if known else None

"""Faults of the optimizer, its precision and its schedule, and of settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.doctor.fault import BASES, CURVE, PLAIN, RESUMED, Fault, Plant, rules
from danlu.engines.torch.optimizer import Optimizer
from danlu.train import loop


def _set(change: Callable[[Optimizer], None]) -> Plant:
    """Settings are changed behind the optimizer's back, once it is made."""
    honest: Any = Optimizer.__init__

    def wrong(self: Optimizer, *arguments: Any, **named: Any) -> None:
        honest(self, *arguments, **named)
        change(self)

    return lambda: patch.object(Optimizer, "__init__", wrong)


def _groups(**values: Any) -> Callable[[Optimizer], None]:
    def change(self: Optimizer) -> None:
        for group in self.adamw.param_groups:
            group.update(values)

    return change


def _decays_vectors(self: Optimizer) -> None:
    for group in self.adamw.param_groups:
        group["weight_decay"] = 0.1


def _keeps_gradients(self: Optimizer) -> None:
    self.adamw.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


def _never_steps(self: Optimizer) -> None:
    self.adamw.step = lambda *_: None  # type: ignore[method-assign,assignment]


def _after_step(change: Callable[[Optimizer], None]) -> Plant:
    honest = Optimizer.step

    def wrong(self: Optimizer, rate: float, finite: bool) -> tuple[float, str | None]:
        made = honest(self, rate, finite)
        with torch.no_grad():
            change(self)
        return made

    return lambda: patch.object(Optimizer, "step", wrong)


def _rounds(self: Optimizer) -> None:
    for parameter in self.parameters.values():
        parameter.copy_(parameter.bfloat16())


def _breaks(self: Optimizer) -> None:
    """A weight becomes NaN in step 100, as by a fault of the device."""
    count = getattr(self, "_count", 0) + 1
    self._count = count  # type: ignore[attr-defined]
    if count == 100:
        next(iter(self.parameters.values())).view(-1)[5] = float("nan")


def _clips_scaled() -> AbstractContextManager[Any]:
    """The norm is taken, and clipped by, with the loss scale in it."""

    def wrong(self: Optimizer, rate: float, finite: bool) -> tuple[float, str | None]:
        for group in self.adamw.param_groups:
            group["lr"] = rate * group["rate"]
        norm = self._global_norm()
        if finite and norm < float("inf"):
            self._multiply_gradients(min(1.0, self.clipping / (norm + 1e-6)) / self.loss_scale)
            self.adamw.step()
        self.scale.update(not norm < float("inf"))
        self.adamw.zero_grad(set_to_none=True)
        return norm, None

    return patch.object(Optimizer, "step", wrong)


def _overflows() -> AbstractContextManager[Any]:
    """From step 41 on most gradients overflow, whatever the scale."""
    honest = Optimizer._global_norm
    steps = iter(range(1, 10**9))

    def wrong(self: Optimizer) -> float:
        norm, step = honest(self), next(steps)
        return float("inf") if step > 40 and step % 4 else norm

    return patch.object(Optimizer, "_global_norm", wrong)


def _ascends() -> AbstractContextManager[Any]:
    honest = Optimizer._multiply_gradients
    return patch.object(Optimizer, "_multiply_gradients", lambda self, factor: honest(self, -factor))


def _scheduled(change: Callable[[int], int]) -> Plant:
    """The schedule is asked for another step."""
    honest = loop.rate_at
    return lambda: patch.object(loop, "rate_at", lambda recipe, step: honest(recipe, change(step)))


def _deaf() -> AbstractContextManager[Any]:
    """The optimizer keeps the peak, whatever the schedule says."""
    honest = Optimizer.step
    return patch.object(Optimizer, "step", lambda self, _rate, finite: honest(self, self.adamw.defaults["lr"], finite))


def _loses_moments() -> AbstractContextManager[Any]:
    return patch.object(Optimizer, "load_tensors", lambda self, _found, _folder: self.adamw.state.clear())


RATE = "train.optimizer.learning_rate"
HOT = rules("learning_rate_too_high", "usual_rates", "warmup_too_short")
COLD = rules("learning_rate_too_low", "usual_rates")
SETTINGS = rules("optimizer_settings", "weight_decay")
SCHEDULE = rules("learning_rate_schedule")
AFTER = RESUMED + 1
FAULTS = (
    Fault("learning rate 0.3", "100 times too high", HOT, PLAIN, overrides=(f"{RATE}=0.3",), visible=CURVE),
    Fault("learning rate 1", "300 times too high", HOT, PLAIN, overrides=(f"{RATE}=1.0",), visible=CURVE),
    Fault(
        "no warm-up and no clipping",
        "at 30 times the rate",
        HOT,
        PLAIN,
        overrides=(f"{RATE}=0.1", "train.schedule.warmup_steps=0", "train.optimizer.gradient_clipping=0"),
        visible=CURVE,
    ),
    Fault(
        "learning rate 0.025",
        "8 times too high, and no warm-up",
        HOT,
        PLAIN,
        overrides=(f"{RATE}=0.025", "train.schedule.warmup_steps=0"),
        visible=CURVE,
    ),
    Fault("gradient ascent", "the sign of the gradients is wrong", rules("wrong_direction"), PLAIN, _ascends),
    Fault("learning rate 1e-6", "3,000 times too low", COLD, PLAIN, overrides=(f"{RATE}=1e-6",)),
    Fault("learning rate 1e-8", "300,000 times too low", COLD, PLAIN, overrides=(f"{RATE}=1e-8",)),
    Fault("betas of the framework", "0.9 and 0.999", SETTINGS, PLAIN, _set(_groups(betas=(0.9, 0.999)))),
    Fault("epsilon 1e-2", "a thousandth of the moments is left", SETTINGS, PLAIN, _set(_groups(eps=1e-2))),
    Fault("no weight decay", "the setting does not reach the optimizer", SETTINGS, PLAIN, _set(_groups(weight_decay=0.0))),
    Fault("norms are decayed", "weight decay on all parameters", SETTINGS, PLAIN, _set(_decays_vectors)),
    Fault(
        "betas lost at resume",
        "the defaults from there on",
        SETTINGS,
        BASES["resumed"],
        _set(_groups(betas=(0.5, 0.9))),
        visible=AFTER,
    ),
    Fault(
        "moments lost at resume", "a new optimizer", rules("optimizer_restarted"), BASES["resumed"], _loses_moments, visible=AFTER
    ),
    Fault("gradients not zeroed", "they add up over the steps", rules("gradients_kept"), PLAIN, _set(_keeps_gradients)),
    Fault("optimizer never steps", "the call was left out", rules("unmoved_parameters"), PLAIN, _set(_never_steps)),
    Fault("weights in bf16", "no float32 master weights", rules("rounded_weights"), BASES["bf16"], _after_step(_rounds)),
    Fault("a weight becomes NaN", "at step 100", rules("nonfinite"), PLAIN, _after_step(_breaks), visible=101),
    Fault(
        "clipped before unscaling",
        "by a norm with the scale in it",
        rules("clipped_before_unscaling"),
        BASES["fp16"],
        _clips_scaled,
    ),
    Fault(
        "fp16 overflows",
        "three of four steps from step 41 on",
        rules("loss_scale_collapse"),
        BASES["fp16"],
        _overflows,
        visible=41,
    ),
    Fault("schedule stepped twice", "as by two processes", SCHEDULE, PLAIN, _scheduled(lambda step: 2 * step)),
    Fault(
        "schedule anew at resume",
        "it warms up again",
        SCHEDULE,
        BASES["resumed"],
        _scheduled(lambda step: step - RESUMED),
        visible=AFTER,
    ),
    Fault("schedule not applied", "the optimizer keeps the peak", SCHEDULE, PLAIN, _deaf),
)

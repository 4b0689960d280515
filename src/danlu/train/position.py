"""Where a run stands, and what is said of it when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from danlu.model.counts import parameter_count
from danlu.model.shape import ModelShape
from danlu.plural import many
from danlu.recipe import Recipe
from danlu.watch.format import count

RECENT_STEPS = 20
"""Steps whose mean loss is held against a validation loss; that of a single batch says as much of the batch as of the model."""


@dataclass
class Position:
    """Where a run stands; saved with every checkpoint and enough to go on bit for bit. Losses in nats a token."""

    step: int = 0
    """Optimizer steps done; also the position in the data, whose order is a function of (seed, step)."""
    first_loss: float | None = None
    """Of the first step whose loss was finite."""
    recent_losses: list[float] = field(default_factory=list)
    """The last finite ones, RECENT_STEPS at most, the newest at the end."""
    validation_loss: float | None = None
    validation_ratio: float | None = None
    """The last validation loss / the mean of the recent losses at that time."""
    non_finite: int = 0
    """Non-finite steps in a row."""
    skipped: int = 0
    """Steps whose update was not applied."""
    tokens: int = 0
    """Tokens that went through the training steps."""
    step_seconds: float = 0.0
    """Time spent in steps; validations and checkpoints are no part of it."""
    peak: float | None = None
    """Matmul peak in FLOP/s: the largest seen on peak_device, since load lowers what is measured; None: not known there."""
    peak_device: str | None = None

    data_offset: int = 0
    """Batches that returns have left out."""
    rate_factor: float = 1.0
    """What returns have multiplied the learning rate by."""
    rollbacks: int = 0
    """Returns so far."""

    @property
    def batch(self) -> int:
        """Number of the batch that the next step has."""
        return self.step + self.data_offset

    @property
    def recent_loss(self) -> float | None:
        """Mean of the recent losses."""
        return sum(self.recent_losses) / len(self.recent_losses) if self.recent_losses else None

    def count_step(self, loss: float, tokens: int, seconds: float) -> None:
        """A step is done."""
        self.step += 1
        self.tokens += tokens
        self.step_seconds += seconds
        if math.isfinite(loss):
            self.recent_losses = [*self.recent_losses, loss][-RECENT_STEPS:]
            if self.first_loss is None:
                self.first_loss = loss

    def take_peak(self, measured: float | None, device: str) -> None:
        """A matmul peak in FLOP/s that was measured now; a larger one that an earlier start saw on the same device stays."""
        if measured is not None and self.peak is not None and self.peak_device == device:
            measured = max(measured, self.peak)
        self.peak, self.peak_device = measured, device

    def share_of_peak(self, rate: float) -> float | None:
        """Of a process's FLOP/s. A step that is faster shows that the peak was measured too low, and raises it."""
        if self.peak is None:
            return None
        self.peak = max(self.peak, rate)
        return rate / self.peak


def summary(position: Position, recipe: Recipe, shape: ModelShape) -> dict[str, Any]:
    """The run in one flat object. Losses in nats a token; speed in the steps alone, since the first start of the run."""
    validation = position.validation_loss
    return {
        "name": recipe.name,
        "steps": position.step,
        "parameters": parameter_count(shape),
        "tokens": position.tokens,
        "first_loss": position.first_loss,
        "last_loss": position.recent_losses[-1] if position.recent_losses else None,
        "recent_loss": position.recent_loss,
        "last_validation_loss": validation if validation is not None and math.isfinite(validation) else None,
        "tokens_per_second": position.tokens / position.step_seconds if position.step_seconds else None,
    }


def summary_rows(position: Position, summary: dict[str, Any], steps: int, saved: int | None) -> list[tuple[str, str]]:
    """The same for a person, when the run ends before its last step; ``saved`` is the step of the newest checkpoint."""
    rows = [("stopped", f"after {summary['steps']} of {many(steps, 'step')}, {count(summary['tokens'])} tokens")]
    if summary["first_loss"] is not None:
        recent = f"{summary['recent_loss']:.3f} in the mean of the last {len(position.recent_losses)}"
        rows.append(("loss", f"{summary['first_loss']:.3f} at the first step, {recent}"))
    if summary["last_validation_loss"] is not None:
        rows.append(("validation", f"loss {summary['last_validation_loss']:.3f} on text held out"))
    if summary["tokens_per_second"] is not None:
        rows.append(("speed", f"{summary['tokens_per_second']:,.0f} tokens/s in the steps"))
    rows.append(("checkpoint", "none yet" if saved is None else f"after step {saved}"))
    return rows

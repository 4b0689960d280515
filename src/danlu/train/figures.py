"""The figures of one step, as they are recorded and shown."""

from __future__ import annotations

from danlu.engines.base import Engine, StepResult
from danlu.train.position import Position
from danlu.watch import probes


def figures(
    engine: Engine, position: Position, result: StepResult, rate: float, speed: float, mfu: float | None
) -> dict[str, float]:
    """By name; ``speed`` is in tokens a second. What there is none of (no device, no known peak) is left out."""
    found = {
        "train/loss": result.loss,
        "train/gradient_norm": result.gradient_norm,
        "train/learning_rate": rate,
        "train/skipped_steps": position.skipped,
        "train/tokens_per_second": speed,
        "memory/resident_bytes": probes.resident_bytes(),
    }
    found |= {f"train/{name}": value for name, value in result.measured.items()}
    may_miss = {"train/mfu": mfu, "memory/device_bytes": engine.device_memory()}
    return found | {name: value for name, value in may_miss.items() if value is not None}

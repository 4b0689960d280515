"""What a machine was measured to take: curves of seconds by size, for so many processes that compute on it at once.

`danlu hardware measure` writes them into a hardware file. A curve is linear between its points, goes on in proportion beyond the
last one, and its first point is (almost) nothing but the cost of calling the operator. What such calls cost in a whole step is
measured in whole steps of a model that is nothing but calls (`Fixed`); to that a curve adds what it rises above its first point.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

Precision = Literal["fp32", "bf16"]
OPERATORS = ("norm", "rotation", "activation", "add", "copy", "cast", "loss", "embedding", "accumulate", "update")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send")
FIXED = ("alone", "data", "sharded", "tensor", "pipeline")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Curve(RootModel[tuple[tuple[float, float], ...]]):
    """Seconds by size: pairs of both, in order."""

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _ordered(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        sizes = [size for size, _ in points]
        if len(sizes) < 2 or sizes != sorted(set(sizes)) or sizes[0] < 0 or any(seconds <= 0 for _, seconds in points):
            raise ValueError("a curve has two points or more, whose sizes rise and whose seconds are above 0")
        return points

    def at(self, size: float) -> float:
        """Seconds of one call."""
        place = bisect_left(self.root, size, key=lambda point: point[0])
        if place == 0:
            return self.root[0][1]
        if place == len(self.root):
            return self.root[-1][1] * size / self.root[-1][0]
        (left, low), (right, high) = self.root[place - 1 : place + 1]
        return low + (high - low) * (size - left) / (right - left)

    def above(self, size: float) -> float:
        """What is more than a call that does nothing."""
        return max(0.0, self.at(size) - self.root[0][1])


class Both(_Part):
    """Forward and backward of one operator."""

    forward: Curve
    backward: Curve


class Fixed(_Part):
    """Seconds of a step of l layers and a micro-batches in which there is nothing to compute: step + l p + a (m + l n)."""

    step: float = Field(ge=0)
    step_layer: float = Field(ge=0, description="p: of each layer once a step.")
    micro_batch: float = Field(ge=0, description="m: of each micro-batch.")
    layer: float = Field(ge=0, description="n: of each layer and micro-batch, forward and backward.")

    def seconds(self, layers: float, micro_batches: float) -> float:
        """Of a whole step."""
        return self.step + layers * self.step_layer + micro_batches * (self.micro_batch + layers * self.layer)


class Share(_Part):
    """What each process gets while so many compute at once."""

    processes: int = Field(gt=0)
    threads: int = Field(gt=0, description="Of each process.")
    matmul: dict[Precision, Curve] = Field(description="By operations; a multiply and an add are two.")
    attention: dict[Precision, Both] = Field(description="By length of the sequence: causal, one sample, one head of 64.")
    operators: dict[str, dict[Precision, Both]] = Field(description="By elements.")
    collectives: dict[str, Curve] = Field(default={}, description="By bytes of the whole tensor, among all the processes.")
    fixed: dict[str, dict[Precision, Fixed]]
    slowdown: dict[Precision, float] = Field(
        default={}, description="Of a whole step of a model over the sum of its parts, each of which was the quickest of many."
    )


def share(shares: tuple[Share, ...], processes: int) -> Share:
    """The one for so many processes; where that was not measured, the nearest below."""
    return max((each for each in shares if each.processes <= processes), key=lambda each: each.processes, default=shares[0])

"""What a step does to the weights, from a few of each parameter: two small copies from the device at every look."""

from __future__ import annotations

import numpy as np

from danlu.engines.base import Vitals
from danlu.model.shape import ModelShape

RESOLUTION = 2.0**-23
"""Of float32: a step of the learning rate's size that is below this share of a weight may rightly do nothing."""
Samples = dict[str, np.ndarray]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Weights:
    """The sampled weights as the run began, and before the step that is looked at."""

    def __init__(self, shape: ModelShape) -> None:
        self.tied = shape.tied_embeddings
        self.first: Samples = {}
        self.before: Samples = {}

    def begin(self, vitals: Vitals) -> None:
        """Ahead of a start's first step."""
        self.first = vitals.samples

    def look(self, vitals: Vitals) -> None:
        """Ahead of the step."""
        self.before = vitals.samples

    def measure(self, vitals: Vitals) -> dict[str, float]:
        """After it.

        ``layer/NAME/update_ratio``: RMS of the update / RMS of the weights. ``layer/NAME/moved``: share that is not what it was
        at the start. ``weights/bf16_share``: those of all that moved that bf16 holds without rounding, by chance 2^-16 of them.
        ``weights/tied_difference``: the largest between embeddings that are to be one.
        """
        found: dict[str, float] = {}
        moved_weights = []
        for name, now in vitals.samples.items():
            if not now.size:
                continue
            size, update = _rms(now), _rms(now - self.before[name])
            if size > 0:
                found[f"layer/{_short(name)}/update_ratio"] = update / size
            moved = now != self.first[name]
            if vitals.optimizer["learning_rate"] > RESOLUTION * size:
                found[f"layer/{_short(name)}/moved"] = float(moved.mean())
            moved_weights.append(now[moved])
        every = np.concatenate([*moved_weights, np.empty(0, np.float32)])
        if every.size:
            found["weights/bf16_share"] = float(((every.view(np.uint32) & 0xFFFF) == 0).mean())
        if self.tied and EMBEDDING in vitals.samples and HEAD in vitals.samples:
            found["weights/tied_difference"] = float(np.abs(vitals.samples[EMBEDDING] - vitals.samples[HEAD]).max())
        return found


def _short(name: str) -> str:
    return name.removeprefix("model.").removesuffix(".weight")


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))

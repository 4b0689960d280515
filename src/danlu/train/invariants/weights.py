"""What steps do to the weights, from a few of each parameter: one small copy from the device at every look."""

from __future__ import annotations

import numpy as np

from danlu.engines.base import Vitals
from danlu.model.shape import ModelShape

RESOLUTION = 2.0**-23
"""Of float32: a step of the learning rate's size that is below this share of a weight may rightly do nothing."""
Samples = dict[str, np.ndarray]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Weights:
    """The sampled weights as this start of the run found them."""

    def __init__(self, shape: ModelShape) -> None:
        self.tied = shape.tied_embeddings
        self.first: Samples = {}

    def begin(self, vitals: Vitals) -> None:
        """Ahead of a start's first step."""
        self.first = vitals.samples

    def measure(self, vitals: Vitals) -> dict[str, float]:
        """After a step.

        ``sample/NAME/moved``: share that is not what it was at the start. ``weights/bf16_share``: those of all that moved that
        bf16 holds without rounding, by chance 2^-16 of them. ``weights/tied_difference``: the largest between embeddings that
        are to be one.

        A step too small for float32 moves no weight, and rows of the input embedding whose tokens did not come yet are moved by
        weight decay alone: of what need not move nothing is said.
        """
        found: dict[str, float] = {}
        rate = vitals.optimizer["learning_rate"]
        decayed = rate * vitals.optimizer["weight_decay"] > RESOLUTION
        moved_weights = []
        for name, now in vitals.samples.items():
            if not now.size:
                continue
            moved = now != self.first[name]
            if rate > RESOLUTION * _rms(now) and (name != EMBEDDING or self.tied or decayed):
                found[f"sample/{name}/moved"] = float(moved.mean())
            moved_weights.append(now[moved])
        every = np.concatenate([*moved_weights, np.empty(0, np.float32)])
        if every.size:
            found["weights/bf16_share"] = float(((every.view(np.uint32) & 0xFFFF) == 0).mean())
        if self.tied and EMBEDDING in vitals.samples and HEAD in vitals.samples:
            found["weights/tied_difference"] = float(np.abs(vitals.samples[EMBEDDING] - vitals.samples[HEAD]).max())
        return found


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))

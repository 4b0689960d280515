"""A trained linear model: what a text scores, and its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.dedup.fold import table
from danlu.errors import UserError

FORMAT = "danlu-linear-1"
LONGEST = 20_000
"""Characters of a text that are looked at."""


@dataclass(frozen=True)
class Linear:
    """Weights by hashed feature, and what turns a logit into a chance."""

    weights: Array
    """(features,) float32; a power of two."""
    bias: float
    slope: float = 1.0
    shift: float = 0.0
    """Platt scaling: chance = sigmoid(slope * logit + shift)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How it was trained and how good it is."""

    def chances(self, texts: Sequence[str]) -> Array:
        """Chance of the good (or, for a model of toxicity, the toxic) class, (texts,) float64 in [0, 1]."""
        return sigmoid(self.slope * self.logits(texts) + self.shift)

    def logits(self, texts: Sequence[str]) -> Array:
        """The raw scores, before calibration, (texts,) float64."""
        from danlu.data.curate.linear import kernels

        codes, ends = characters(texts)
        out = np.empty(len(texts), np.float64)
        kernels.logits(codes, ends, table(), self.weights, self.bias, out)
        return out

    def save(self, path: Path) -> None:
        """Write `path`: safetensors with the weights as float16, and the rest as JSON in its header."""
        from safetensors.numpy import save_file

        facts = {"bias": self.bias, "slope": self.slope, "shift": self.shift, "facts": self.facts}
        metadata = {"format": FORMAT, "model": json.dumps(facts, ensure_ascii=True)}
        save_file({"weights": self.weights.astype(np.float16)}, str(path), metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> Linear:
        """Read a file that `save` wrote.

        Raises:
            UserError: it is not there, is damaged, or is something else.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise UserError(f"{path}: is no text model of danlu; make one with danlu data train-scorer")
                weights = file.get_tensor("weights").astype(np.float32)
            model = json.loads(metadata["model"])
            made = cls(weights, float(model["bias"]), float(model["slope"]), float(model["shift"]), dict(model["facts"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no text model that can be read: {error}; make one with danlu data train-scorer") from None
        if weights.ndim != 1 or not len(weights) or len(weights) & (len(weights) - 1) or not np.isfinite(weights).all():
            raise UserError(f"{path}: its weights have the shape {weights.shape} or are not finite; train it again")
        return made


def characters(texts: Sequence[str]) -> tuple[Array, Array]:
    """Code points of all texts, cut to LONGEST, uint32, and where each ends, int64."""
    cut = [text[:LONGEST] for text in texts]
    data = "".join(cut).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(data or b"\0\0\0\0", np.uint32), np.cumsum([len(text) for text in cut], dtype=np.int64)


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-logits)), without overflow."""
    chances: Array = np.exp(-np.logaddexp(0, -logits))
    return chances

"""Which state of a run becomes a checkpoint, and which checkpoints stay; `saver` writes them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from danlu.engines.base import Engine
from danlu.recipe import Recipe
from danlu.train.position import Position
from danlu.train.saver import Saved, Saver


class Saves:
    """A run's checkpoints. All processes of a layout call the same methods at the same steps."""

    def __init__(self, recipe: Recipe, engine: Engine, folder: Path, data: str, second: str | None) -> None:
        """The fingerprints of what is trained on, and of a second model in the loss."""
        self.steps, self.keep, self.origin = recipe.train.steps, recipe.checkpoint.keep, {"data": data, "second": second}
        self.saver = Saver(engine, folder)
        self.begun: int | None = None
        """Step of the newest checkpoint, even if it is not complete yet; None where there is none of the present weights."""
        self.complete: int | None = None
        """Step of the newest that is complete."""
        self.changed = False
        """Whether a step since the last checkpoint changed the weights or the loss scale."""

    def due(self, position: Position) -> bool:
        """Whether there is something new to save. Amid non-finite steps that takes more than another step."""
        nothing_new = position.non_finite > 0 and not self.changed and self.begun is not None and position.step < self.steps
        return self.begun != position.step and not nothing_new

    def begin(self, position: Position, background: bool) -> None:
        """Save what is due; the save before must be finished.

        Amid non-finite steps nothing older goes for it: what they began from may be ruined already.
        """
        self.changed, self.begun = False, position.step
        keep = None if position.non_finite else self.keep
        self.saver.begin(position.step, {"position": asdict(position), **self.origin}, keep, background)

    def finish(self, wait: bool) -> Saved | None:
        """As `Saver.finish`."""
        done = self.saver.finish(wait)
        if done is not None:
            self.complete = self.begun
        return done

"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from danlu.data.arrays import Array
from danlu.data.curate.quality.measures import Measures

Figure = Callable[[Measures], Array]


@dataclass(frozen=True)
class Rule:
    """One figure of a text, which a field of the recipe holds to a limit."""

    family: str
    """Field of data.curate.quality: a section."""
    field: str
    """Field of that section, `least_...` or `most_...`."""
    figure: Figure
    """(texts,) float64 of some texts; its docstring says what is measured."""
    language: str = ""
    """ISO 639-1 code of the only language that it is for; empty: every one."""

    @property
    def name(self) -> str:
        """What rejections call it."""
        return f"{self.family}.{self.field}"

    def fails(self, value: Array, limit: float) -> Array:
        """Whether figures are beyond a limit, (texts,) bool."""
        fails: Array = value < limit if self.field.startswith("least_") else value > limit
        return fails

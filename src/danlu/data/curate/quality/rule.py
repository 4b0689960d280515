"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
    def what(self) -> str:
        """What is measured, in words."""
        figure = self.figure
        if isinstance(figure, partial):  # one function for rows of several lengths
            return (figure.func.__doc__ or "").replace("so many", str(figure.args[0]))
        return " ".join((figure.__doc__ or "").split())

    @property
    def name(self) -> str:
        """What rejections call it."""
        return f"{self.family}.{self.field}"

    def fails(self, values: Array, limits: Array) -> Array:
        """Whether figures are beyond their limits, (texts,) bool; never beyond NaN."""
        fails: Array = values < limits if self.field.startswith("least_") else values > limits
        return fails

"""Where this process stands in the layout: its rank along each dimension, and the groups that it talks to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Self

from danlu.errors import UserError
from danlu.recipe import Recipe


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and this process's place. One process does all."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    rank: int = 0
    data_rank: int = 0

    @classmethod
    def start(cls, recipe: Recipe) -> Self:
        """UserError: another number of processes was started."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world != recipe.parallel.processes:
            raise UserError(
                f"parallel: data x tensor x pipeline = {recipe.parallel.processes}, but {world} processes were started; "
                "let `danlu train` start them, or start that many"
            )
        return cls()

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return flag

    def gather(self, value: Any) -> list[Any]:
        """Every process's small value, by rank."""
        return [value]

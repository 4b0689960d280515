"""Profiles the steps that ``watch.profile`` names. Every process writes its own trace; `danlu.watch.profile` reads them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from danlu.engines.base import Engine, StepResult
from danlu.files import why, write_json
from danlu.recipe import Recipe
from danlu.watch.profile import FOLDER, steps_file, trace_file


class Profiling:
    """One process's profile. All processes of a layout call the same methods at the same steps."""

    def __init__(self, recipe: Recipe, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder / FOLDER
        self.range = recipe.watch.profiled
        self.steps: list[dict[str, Any]] = []
        self.active = False

    def before(self, step: int) -> None:
        """Begin with the first of the steps; after a resume, with the first that is left."""
        if step in self.range and not self.active:
            self.engine.start_profile()
            self.active = True

    def after(self, step: int, result: StepResult, seconds: float, waited: float, matmul_peak: float | None) -> str | None:
        """Take a step that is done; returns what to say once the last one is, and its files are written."""
        if not self.active:
            return None
        parts = {"data_wait": waited, **result.seconds}
        self.steps.append({"step": step, "seconds": seconds, "parts": parts})
        if step + 1 in self.range:
            return None
        self.active, start = False, time.perf_counter()
        try:
            self._write(matmul_peak)
        except (OSError, RuntimeError) as error:  # torch writes traces by C++, which raises the latter
            reason = why(error) if isinstance(error, OSError) else str(error).splitlines()[0]
            return f"step {step}: the profile cannot be written: {reason}; training goes on"
        taken = time.perf_counter() - start
        return f"step {step}: profile written in {taken:.1f} s; read it with: danlu profile {self.folder.parent}"

    def _write(self, matmul_peak: float | None) -> None:
        profile = self.engine.end_profile()
        told = {
            "device": self.engine.device,
            "matmul_flops_per_second": matmul_peak,
            "copy_bytes_per_second": self.engine.copy_peak(),
            "steps": self.steps,
        }
        self.folder.mkdir(exist_ok=True)
        profile(trace_file(self.folder, self.engine.rank))
        write_json(steps_file(self.folder, self.engine.rank), told)

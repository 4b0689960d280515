"""The curves of both engines from one start, the same with a change of engine on the way, and the layer where they part."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from danlu.compare import first
from danlu.compare.steps import RESULTS, Job
from danlu.engines.hugging_face import hugging_face_files
from danlu.errors import DanluError
from danlu.plan.verdict import table

ENGINES = ("torch", "paddle")
LOSS, NORM, WEIGHTS = 1e-4, 1e-3, 1e-3
"""Largest relative differences at any step, of the loss and the gradient norm, and at the end, of any tensor (in the L2 norm)."""


@dataclass(frozen=True)
class Gaps:
    """How far a way of training went from the first engine's."""

    way: str
    loss: float
    loss_step: int
    norm: float
    norm_step: int
    weights: float
    tensor: str

    @property
    def equal(self) -> bool:
        """Whether all is within the tolerances; a NaN is not."""
        return self.loss <= LOSS and self.norm <= NORM and self.weights <= WEIGHTS


def compare(recipe: Path, data: Path, steps: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Train on each engine, and with a change from one to the other halfway, both ways.

    {steps, swapped_at, equal, worst_loss_gap, worst_norm_gap, worst_weight_gap, ways: [...], losses: {way: [...]},
    first_difference: None or {step, what, where, gap}}. DanluError: an engine failed, with its own line.
    """
    middle = steps // 2
    with tempfile.TemporaryDirectory(prefix="danlu-") as scratch:
        whole = {}
        for engine in ENGINES:
            folder = Path(scratch) / engine
            whole[engine] = Job(str(recipe), str(data), str(folder), engine, 0, steps, middle=middle)
            report(f"{engine}: {steps} steps")
            _run(whole[engine])
        ways = {engine: (_results(job), job.kept(steps)) for engine, job in whole.items()}
        for before, after in (ENGINES, ENGINES[::-1]) if middle else ():
            way = f"{before}, then {after}"
            job = replace(
                whole[after], folder=str(Path(scratch) / way), begin=middle, middle=None, start=str(whole[before].kept(middle))
            )
            report(f"{way}: steps {middle + 1} to {steps}")
            _run(job)
            ways[way] = (ways[before][0][:middle] + _results(job), job.kept(steps))
        reference = ways[ENGINES[0]]
        gaps = [_gaps(way, found, reference) for way, found in ways.items() if way != ENGINES[0]]
        difference = None
        if not all(each.equal for each in gaps):
            report("looking for the first layer that differs")
            difference = _first_difference(whole, Path(scratch), _parting(ways, steps))
    return {
        "steps": steps,
        "swapped_at": middle,
        "equal": all(each.equal for each in gaps),
        "worst_loss_gap": max(each.loss for each in gaps),
        "worst_norm_gap": max(each.norm for each in gaps),
        "worst_weight_gap": max(each.weights for each in gaps),
        "ways": [vars(each) | {"equal": each.equal} for each in gaps],
        "losses": {way: [loss for loss, _ in results] for way, (results, _) in ways.items()},
        "first_difference": difference,
    }


def _run(job: Job) -> None:
    Path(job.folder).mkdir()
    done = subprocess.run([sys.executable, "-m", "danlu.compare.steps", job.text()], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        last = said[-1] if said else f"exit code {done.returncode}"
        raise DanluError(f"{job.engine}: {last.removeprefix('danlu.errors.UserError: ')}")


Results = list[tuple[float, float]]
"""Loss and gradient norm of each step."""


def _results(job: Job) -> Results:
    return [(loss, norm) for loss, norm in json.loads((Path(job.folder) / RESULTS).read_text("utf-8"))]


def _gaps(way: str, found: tuple[Results, Path], reference: tuple[Results, Path]) -> Gaps:
    (results, weights), (wanted, good) = found, reference
    pairs = list(zip(results, wanted, strict=True))
    losses, norms = ([_relative(mine[part], theirs[part]) for mine, theirs in pairs] for part in (0, 1))
    loss_step, norm_step = _largest(losses), _largest(norms)
    mine, theirs = _tensors(weights), _tensors(good)
    apart = {name: first.distance(mine[name], array) for name, array in theirs.items()}
    names = list(apart)
    tensor = names[_largest([apart[name] for name in names])]
    return Gaps(way, losses[loss_step], loss_step + 1, norms[norm_step], norm_step + 1, apart[tensor], tensor)


def _relative(mine: float, theirs: float) -> float:
    if math.isnan(mine) and math.isnan(theirs):  # a step without a target
        return 0.0
    return abs(mine - theirs) / max(abs(theirs), 1e-30)


def _largest(values: Sequence[float]) -> int:
    """Where; a NaN counts as the largest of all."""
    return max(range(len(values)), key=lambda place: math.inf if math.isnan(values[place]) else values[place])


def _tensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    for file in hugging_face_files(folder):
        with safe_open(file, framework="np") as reader:
            found |= {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 - not a dict
    return found


def _parting(ways: dict[str, tuple[Results, Path]], steps: int) -> int:
    """The first step, from 0, whose loss or norm is beyond its tolerance on the second engine; else the last."""
    pairs = zip(ways[ENGINES[0]][0], ways[ENGINES[1]][0], strict=True)
    for step, ((loss, norm), (other_loss, other_norm)) in enumerate(pairs):
        if not (_relative(other_loss, loss) <= LOSS and _relative(other_norm, norm) <= NORM):
            return step
    return steps - 1


def _first_difference(whole: dict[str, Job], scratch: Path, step: int) -> dict[str, Any] | None:
    """Of the first step, which begins from equal weights on both engines, and of the one where the curves part, begun alike."""
    for number, traced in enumerate(dict.fromkeys((0, step))):
        start = None
        if traced:
            before = replace(whole[ENGINES[0]], folder=str(scratch / f"before-{number}"), end=traced, middle=None)
            _run(before)
            start = str(before.kept(traced))
        folders = []
        for engine in ENGINES:
            folders.append(scratch / f"trace-{number}-{engine}")
            _run(
                replace(
                    whole[engine], folder=str(folders[-1]), begin=traced, end=traced + 1, middle=None, start=start, trace=True
                )
            )
        if (found := first.difference(*folders)) is not None:
            return {"step": traced + 1, **found}
    return None


def lines(answer: dict[str, Any]) -> list[str]:
    """The answer for a person, the verdict first."""
    head = ("beside torch alone", "loss", "at step", "gradient norm", "at step", "weights", "most in")
    rows = [
        [
            each["way"],
            f"{each['loss']:.1e}",
            str(each["loss_step"]),
            f"{each['norm']:.1e}",
            str(each["norm_step"]),
            f"{each['weights']:.1e}",
            each["tensor"],
        ]
        for each in answer["ways"]
    ]
    limits = f"loss {LOSS:g}, gradient norm {NORM:g}, final weights {WEIGHTS:g}"
    said = f"equal    {answer['steps']} steps on both engines, within {limits} (relative)"
    if not answer["equal"]:
        said = f"differ   beyond {limits} (relative); {_where(answer['first_difference'])}"
    return [said, "", *table(head, rows)]


def _where(found: dict[str, Any] | None) -> str:
    if found is None:
        return "begun alike, no step differs in any layer: small differences have grown over the steps"
    return f"first in step {found['step']}: the {found['what']} of {found['where']} differs by {found['gap']:.1e}"

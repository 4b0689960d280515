"""What a critical finding leads to: a warning, the end of the run, or a return to the last checkpoint before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from danlu.doctor.finding import Finding, Severity
from danlu.engines.base import Engine
from danlu.errors import RunStopped
from danlu.recipe.doctor_section import DoctorSection
from danlu.train import checkpoint
from danlu.train.checkpoint import Checkpoint
from danlu.train.position import Position

PASSING = frozenset({"divergence", "exploding_gradients", "nonfinite", "odd_batches", "spike"})
"""What other batches, or a lower rate, may mend. The rest of what is critical would be there again."""


class Return(NamedTuple):
    """Where a run goes back to, and where it then stands."""

    position: Position
    state: dict[str, Any]
    path: Path
    said: str


def treat(
    engine: Engine,
    checkpoints: Path,
    settings: DoctorSection,
    position: Position,
    news: Sequence[Finding],
    finish_save: Callable[[bool], None],
) -> Return | None:
    """What to do about the news after a step; only the first process has any, all call. None: go on.

    RunStopped: the recipe wants that, or going back cannot mend it, or there is nowhere to go back to. Nothing new is saved then.
    """
    if settings.on_critical == "warn":
        return None
    cause = max((one for one in news if one.severity == Severity.CRITICAL), key=lambda one: one.confidence, default=None)
    (told, *_) = engine.gather(None if cause is None else _told(cause, position.step))
    if told is None:
        return None
    finish_save(True)  # as if it had not been written in the background, but before anything was found
    said, first, passing = told
    if settings.on_critical == "stop":
        raise _stopped(said)
    if not passing:
        raise _stopped(said, "going back would not mend it")
    if position.rollbacks >= settings.rollbacks:
        raise _stopped(said, f"the run went back {position.rollbacks} times already, as often as doctor.rollbacks allows")
    found = checkpoint.latest(checkpoints, lambda _line: None, engine=engine, before=first)
    if found is None:
        raise _stopped(said, f"there is no checkpoint from before step {first} to go back to")
    if engine.rank == 0:
        checkpoint.delete_after(checkpoints, found.step)  # they hold what went wrong
    engine.agree(False)  # they are gone
    return _return(found, settings, position)


def _told(cause: Finding, step: int) -> tuple[str, int, bool]:
    """(what is said of it, its first step, whether going back may mend it)."""
    rules = {cause.rule, *(symptom.rule for symptom in cause.symptoms)}
    said = f"after step {step} the doctor found that {cause.verdict.en}; {cause.next.en}"
    return said, cause.step or step, bool(PASSING & rules)


def _return(found: Checkpoint, settings: DoctorSection, now: Position) -> Return:
    left_out = now.step - found.step + settings.skip_batches
    back = replace(
        Position(**found.state["position"]),
        data_offset=now.data_offset + left_out,
        rate_factor=now.rate_factor * settings.rollback_rate,
        rollbacks=now.rollbacks + 1,
        tokens=now.tokens,
        step_seconds=now.step_seconds,
        peak=now.peak,
        peak_device=now.peak_device,
    )
    said = f"step {now.step}: back to {found.path.name}; {left_out} batches are left out"
    if settings.rollback_rate < 1:
        said += f", the learning rate is {back.rate_factor:.3g} of the recipe's"
    said += f" (return {back.rollbacks} of at most {settings.rollbacks})"
    return Return(back, found.state["engine"], found.path, said)


def _stopped(said: str, why: str = "") -> RunStopped:
    also = f" ({why})" if why else ""
    return RunStopped(f"{said}{also}. Earlier checkpoints are untouched; doctor.on_critical=warn goes on in spite of it")

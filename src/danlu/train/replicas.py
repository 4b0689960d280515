"""Whether what ranks should hold alike is still the same bits."""

from __future__ import annotations

from danlu.engines.base import Engine
from danlu.errors import RunStopped


def check(engine: Engine, step: int, verified: int | None) -> None:
    """RunStopped: replicas differ after a step; they were equal after the step ``verified``, if there was such a one.

    Nothing is saved then, since it may be ruined. All ranks must call, and all raise the same.
    """
    if not (differing := engine.replicas_differ()):
        return
    before = "" if verified is None else f" (they were after step {verified})"
    raise RunStopped(
        f"replicas are not equal after step {step}{before}: {'; '.join(differing)}; nothing was saved of it. Usual causes: a "
        "device or its memory that computes wrongly (leave out the machine of the rank that differs), code that differs by rank. "
        "Run the same command to go on from the last checkpoint"
    )

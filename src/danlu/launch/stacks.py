"""Where a process stands, read from the stacks that faulthandler wrote of it."""

from __future__ import annotations

import re
from typing import NamedTuple

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_NOT_MEANT = ("danlu/heartbeat.py",)
_AROUND = "danlu/engines/torch/clock.py"
"""Takes the time of whatever waits, and stands between a collective and its caller."""
_WRAPPERS = ("wrapper", "inner", "decorate_context")
_SHOWN = 12
_NAMES = {
    "all_reduce": "an all-reduce",
    "all_gather_into_tensor": "an all-gather",
    "all_gather_single": "an all-gather",
    "all_gather_object": "an all-gather",
    "reduce_scatter_tensor": "a reduce-scatter",
    "reduce_scatter_single": "a reduce-scatter",
    "foreach_all_gather": "an all-gather of parameters",
    "wait_for_unshard": "an all-gather of parameters",
    "foreach_reduce": "a reduction of gradients",
    "barrier": "a barrier",
    "_wait_batch_p2p": "a send or receive of the pipeline",
    "wait_tensor": "a collective of tensor parallelism",
}
"""What a function of torch's is called by people; others go by their own name."""


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


class Standing(NamedTuple):
    """Where one process stands. ``waits``: the collective that it is in, if it is in one. ``frames``: innermost first."""

    waits: str | None
    at: str
    frames: list[Frame]


def standing(dump: str, in_flight: list[str]) -> Standing:
    """Read a dump of all threads; the one that is in a collective counts, else the main thread, which comes last.

    ``in_flight`` are the collectives that the framework itself knows of; a process that waits for a GPU has nothing of them on
    its stacks.
    """
    threads = [
        [
            Frame(match["file"], int(match["line"]), match["function"])
            for match in _FRAME.finditer(block)
            if not match["file"].endswith(_AROUND)
        ]
        for block in re.split(r"\n(?=Thread |Current thread )", dump)
    ]
    threads = [frames for frames in threads if frames and not any(name in frame.file for frame in frames for name in _NOT_MEANT)]
    main = threads[-1] if threads else []
    for frames in [main, *threads]:
        if (collective := _collective(frames)) is not None:
            if collective == _NAMES["wait_tensor"] and in_flight:
                collective = in_flight[-1]
            return Standing(collective, _own(frames) or collective, frames)
    if in_flight:
        return Standing(in_flight[-1], _own(main) or in_flight[-1], main)
    at = (_own(main) or "an unknown place") if not main else _place(main)
    return Standing(None, at, main)


def shown(standing: Standing) -> list[str]:
    """The innermost frames as lines."""
    return [f"    {frame.file}:{frame.line} in {frame.function}" for frame in standing.frames[:_SHOWN]]


def _collective(frames: list[Frame]) -> str | None:
    """The outermost name of the call that the innermost frames are in, if that is torch.distributed's."""
    name = None
    for frame in frames:
        if "torch/distributed/" in frame.file:
            if frame.function in _WRAPPERS:
                continue
            if name is not None and "distributed_c10d" not in frame.file:
                break
            name = frame.function
        elif name is not None and "typing_extensions" not in frame.file:
            break
        elif name is None and not re.search(r"torch/(_ops|_library|autograd)", frame.file):
            return None
    return name and _NAMES.get(name, name)


def _own(frames: list[Frame]) -> str | None:
    own = next((frame for frame in frames if "/danlu/" in frame.file), None)
    return own.text if own else None


def _place(frames: list[Frame]) -> str:
    """The innermost frame, and danlu's own below it."""
    own = _own(frames)
    return frames[0].text if own in (None, frames[0].text) else f"{frames[0].text}, from {own}"

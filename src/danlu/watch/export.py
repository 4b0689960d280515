"""A run's metrics as files of TensorBoard and VisualDL: of what is recorded, and live beside the run.

Both show one curve a name, so what they get is what readers of danlu's own metrics see: of replaced steps the newest. A run that
goes on therefore writes its files anew from its metrics, and then on.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from danlu.errors import UserError
from danlu.files import why
from danlu.watch import store
from danlu.watch.formats.log import Setting, Writer
from danlu.watch.formats.tensorboard import TensorBoardWriter
from danlu.watch.formats.visualdl import VisualDLWriter
from danlu.watch.histogram import Histogram

Format = Literal["visualdl", "tensorboard"]
WRITERS: dict[str, Callable[[Path], Writer]] = {"visualdl": VisualDLWriter, "tensorboard": TensorBoardWriter}
FILES = {"visualdl": "vdlrecords.*.log.danlu", "tensorboard": "events.out.tfevents.*.danlu"}
SECONDS = 1.0
"""Between two times that a live export is written."""


class Facts(NamedTuple):
    """What is told of a run beside its curves."""

    settings: dict[str, Setting]
    recipe: str


def export(metrics: Path, folder: Path, kind: Format, facts: Facts, before: float = math.inf, until: float = math.inf) -> Writer:
    """Write all that was recorded of the steps before one, and until a time, into a folder.

    An export of danlu's that is there is replaced; what another program wrote there stays.

    Returns the writer, which is open. OSError: the folder cannot be written.
    """
    if folder.is_dir():
        for old in folder.glob(FILES[kind]):
            old.unlink()
    writer = WRITERS[kind](folder)
    steps, seconds = store.times(metrics)
    moments = _Moments(steps, seconds)
    started = float(seconds[0]) if len(seconds) else 0.0
    if facts.settings:
        writer.settings(started, facts.settings)
    if facts.recipe:
        writer.text("recipe", 0, started, f"```\n{facts.recipe}\n```")
    for name in store.names(metrics):
        steps, values = store.series(metrics, name)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            if step < before:
                writer.scalar(name, step, moments.of(step), value)
    for name in store.histogram_names(metrics):
        found = store.histograms(metrics, name)
        for step, exponent, counts, bad in zip(
            found.steps.tolist(), found.exponents.tolist(), found.counts, found.not_finite, strict=True
        ):
            if step < before:
                writer.histogram(name, step, moments.of(step), Histogram(exponent, counts, int(bad)))
    for event in store.events(metrics):
        if event.step < before and event.time < until:
            writer.text(f"events/{event.kind}", event.step, event.time, event.message)
    writer.flush()
    return writer


class _Moments:
    """When steps were done: of one without a record, when the one before it was."""

    def __init__(self, steps: Any, seconds: Any) -> None:
        self.steps, self.seconds = steps, seconds

    def of(self, step: int) -> float:
        if not len(self.steps):
            return 0.0
        return float(self.seconds[max(0, int(np.searchsorted(self.steps, step, side="right")) - 1)])


class Mirror:
    """Writes what is recorded into files of other formats as well, from a thread of its own.

    When a file cannot be written, this is said once and its export ends; ``danlu watch export`` makes it whole from the metrics.
    """

    def __init__(self, metrics: Path, folders: Mapping[Format, Path], facts: Facts, first_step: int) -> None:
        """``first_step`` is that of the run's new segment: what is recorded of earlier steps is written first."""
        self.metrics, self.folders, self.facts, self.first_step = metrics, dict(folders), facts, first_step
        self.begun = time.time()
        self._pending: deque[Callable[[Writer], None]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="danlu-export", daemon=True)
        self._thread.start()

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        def write(writer: Writer) -> None:
            for name, value in values.items():
                writer.scalar(name, step, moment, value)

        self._pending.append(write)

    def histograms(self, step: int, moment: float, values: Mapping[str, Histogram]) -> None:
        def write(writer: Writer) -> None:
            for name, found in values.items():
                writer.histogram(name, step, moment, found)

        self._pending.append(write)

    def event(self, step: int, moment: float, kind: str, message: str) -> None:
        self._pending.append(lambda writer: writer.text(f"events/{kind}", step, moment, message))

    def close(self) -> None:
        """Once all is written."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        writers: dict[Format, Writer] = {}
        for kind, folder in self.folders.items():
            with _heeded(kind, writers):
                writers[kind] = export(self.metrics, folder, kind, self.facts, self.first_step, self.begun)
        closing = False
        while not closing:
            closing = self._closing.wait(SECONDS)
            records = [self._pending.popleft() for _ in range(len(self._pending))]
            for kind, writer in list(writers.items()):
                with _heeded(kind, writers):
                    for write in records:
                        write(writer)
                    writer.flush()
        for writer in writers.values():
            with suppress(OSError):
                writer.close()


@contextmanager
def _heeded(kind: Format, writers: dict[Format, Writer]) -> Iterator[None]:
    """What fails ends one export, not the run."""
    try:
        yield
    except (OSError, UserError) as error:
        writers.pop(kind, None)
        said = why(error) if isinstance(error, OSError) else str(error)
        with suppress(OSError, ValueError):
            print(
                f"danlu: the export to {kind} ends here ({said}); the run goes on, and `danlu watch export` makes it whole",
                file=sys.stderr,
                flush=True,
            )


def settings_of(tree: Mapping[str, Any], above: str = "") -> dict[str, Setting]:
    """A recipe's fields as hyper-parameters: dotted name -> value; lists as their text, what is null left out."""
    found: dict[str, Setting] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= settings_of(value, f"{above}{name}.")
        elif value is not None:
            found[above + name] = value if isinstance(value, str | int | float) else str(value)
    return found

"""What a person sees in the terminal while a model trains: a header, then one line that lives."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from danlu.watch.format import bytes_text, cells, count, duration, figure, padded, share, shortened

REDRAW_SECONDS = 0.1
"""The live line is redrawn at most this often, so that fast steps do not wait for a slow terminal."""
FALLBACK_COLUMNS = 80


@dataclass(frozen=True)
class Progress:
    """The figures of one step. What is None is not known, and is not shown."""

    step: int
    """Steps done, this one included."""
    total: int
    """Steps of the whole run."""
    loss: float
    validation_loss: float | None = None
    """The latest one."""
    validation_ratio: float | None = None
    """Validation loss / training loss, both of the time of the validation."""
    gradient_norm: float | None = None
    """Before clipping."""
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    """Share of the device's matmul peak, 0..1."""
    memory_bytes: float | None = None
    data_wait: float | None = None
    """Share of the step's time spent waiting for data, 0..1."""
    seconds_left: float | None = None


def header(rows: Sequence[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Print label and value pairs as an aligned block, to stdout unless another stream is given."""
    width = max((cells(label) for label, _ in rows), default=0)
    indent = "\n" + " " * (width + 4)
    lines = [f"  {padded(label, width)}  {indent.join(value.splitlines())}".rstrip() + "\n" for label, value in rows]
    _write(stream or sys.stdout, "".join(lines))


class LiveLine:
    """One line of figures a step: rewritten in place on a terminal, printed every `print_every` steps elsewhere.

    On a terminal the line fits its width: the least important figures are left out rather than wrapped. Elsewhere the first
    step seen and the last of the run are printed too, and loss, speed, MFU and the wait for data are means over the steps since
    the line before.
    """

    def __init__(self, stream: TextIO, print_every: int) -> None:
        self._stream = stream
        self._print_every = print_every
        self._terminal = stream.isatty()
        self._progress: Progress | None = None
        self._unprinted: list[Progress] = []
        self._shown = 0
        """Columns of the live line now on the terminal."""
        self._next_draw = 0.0

    def update(self, progress: Progress) -> None:
        """Show the figures of a step."""
        first, last = self._progress is None, progress.step >= progress.total
        self._progress = progress
        if self._terminal:
            now = time.monotonic()
            if last or now >= self._next_draw:
                self._next_draw = now + REDRAW_SECONDS
                self._draw()
            return
        self._unprinted.append(progress)
        if first or last or progress.step % self._print_every == 0:
            _write(self._stream, line(_mean(self._unprinted)) + "\n")
            self._unprinted = []

    def note(self, message: str) -> None:
        """Print a message as full lines; the live line goes on below it."""
        self._erase()
        _write(self._stream, message + "\n")
        if self._terminal and self._progress is not None:
            self._draw()

    def restart(self) -> None:
        """The steps since the last line are undone: no mean counts them."""
        self._unprinted = []

    def close(self) -> None:
        """Leave the last figures standing and go to a new line."""
        if self._terminal and self._progress is not None:
            self._draw()
            _write(self._stream, "\n")
        self._progress, self._shown = None, 0

    def _draw(self) -> None:
        assert self._progress is not None
        text = line(self._progress, _columns(self._stream) - 1)  # a full last column would wrap on some terminals
        _write(self._stream, "\r" + padded(text, self._shown))
        self._shown = cells(text)

    def _erase(self) -> None:
        if self._shown:
            _write(self._stream, "\r" + " " * self._shown + "\r")
            self._shown = 0


def _mean(steps: Sequence[Progress]) -> Progress:
    """The last step's figures with means in place of those that swing; steps that were not finite have no loss to count."""
    finite = [step.loss for step in steps if math.isfinite(step.loss)]
    mean = replace(steps[-1], loss=sum(finite) / len(finite) if finite else steps[-1].loss)
    if any(not step.tokens_per_second for step in steps):
        return mean
    # Steps have equal tokens, so a rate's inverse stands for its time; weighted by time, rates are the total by the total.
    times = [1 / step.tokens_per_second for step in steps if step.tokens_per_second]

    def over_time(values: list[float | None]) -> float | None:
        known = [(value, time) for value, time in zip(values, times, strict=True) if value is not None]
        return sum(value * time for value, time in known) / sum(time for _, time in known) if known else None

    return replace(
        mean,
        tokens_per_second=len(times) / sum(times),
        mfu=over_time([step.mfu for step in steps]),
        data_wait=over_time([step.data_wait for step in steps]),
    )


def line(progress: Progress, width: int | None = None) -> str:
    """The figures as one line; with a width, whole figures are dropped, the least important first, until it fits."""
    fields = _fields(progress)
    while width is not None and len(fields) > 1 and cells(_joined(fields)) > width:
        fields.remove(min(fields, key=lambda field: field[0]))
    text = _joined(fields)
    return text if width is None else shortened(text, width)


def _joined(fields: Sequence[tuple[int, str]]) -> str:
    return "  ".join(text for _, text in fields)


def _fields(progress: Progress) -> list[tuple[int, str]]:
    """(importance, text) in the order shown."""
    done = f"{progress.step:>{len(str(progress.total))}}/{progress.total}"
    fields = [(100, f"step {done}"), (90, f"loss {figure(progress.loss)}")]
    if progress.validation_loss is not None:
        ratio = "" if progress.validation_ratio is None else f" (×{progress.validation_ratio:.2f})"
        fields.append((70, f"val {figure(progress.validation_loss)}{ratio}"))
    if progress.gradient_norm is not None:
        fields.append((60, f"grad {figure(progress.gradient_norm)}"))
    if progress.learning_rate is not None:
        fields.append((50, f"lr {progress.learning_rate:.2e}"))
    if progress.tokens_per_second is not None:
        fields.append((65, f"{count(progress.tokens_per_second)} tok/s"))
    if progress.mfu is not None:
        fields.append((30, f"MFU {share(progress.mfu)}"))
    if progress.memory_bytes is not None:
        fields.append((20, f"mem {bytes_text(progress.memory_bytes)}"))
    if progress.data_wait is not None:
        fields.append((40, f"data wait {share(progress.data_wait)}"))
    if progress.seconds_left is not None and progress.step < progress.total:
        fields.append((80, f"ETA {_whole(progress.seconds_left)}"))
    return fields


def _whole(seconds: float) -> str:
    """An estimate is not good to less than a second."""
    return f"{max(1, round(seconds))} s" if seconds < 59.5 else duration(seconds)


def _columns(stream: TextIO) -> int:
    """Columns of the terminal behind the stream; asked every time, since a person may resize it."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or FALLBACK_COLUMNS  # some terminals report 0


def _write(stream: TextIO, text: str) -> None:
    """Write and flush; characters that the stream's encoding lacks become question marks rather than an error."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()

"""What is printed while training: on a real pseudo-terminal, and where there is none."""

from __future__ import annotations

import fcntl
import io
import math
import os
import pty
import re
import select
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from danlu.watch import console
from danlu.watch.console import LiveLine, Progress, header, line
from danlu.watch.format import cells

FULL = Progress(
    step=120,
    total=4000,
    loss=3.21234,
    validation_loss=3.3,
    validation_ratio=1.027,
    gradient_norm=0.8,
    learning_rate=3e-4,
    tokens_per_second=12345.0,
    mfu=0.412,
    memory_bytes=1.5 * 1024**3,
    data_wait=0.004,
    seconds_left=75.0,
)


class Terminal:
    """A pseudo-terminal of a given width; `screen()` is what a person would see on it."""

    def __init__(self, columns: int) -> None:
        self._master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.columns = columns
        self.resize(columns)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def received(self) -> str:
        """All that arrived since the last call; the kernel hands it over in its own time."""
        raw = b""
        while select.select([self._master], [], [], 0.1)[0]:
            raw += os.read(self._master, 1 << 16)
        return raw.decode()

    def screen(self) -> list[str]:
        rows, column = [""], 0
        for character in self.received():
            if character == "\r":
                column = 0
            elif character == "\n":
                rows.append("")
            else:
                rows[-1] = rows[-1][:column] + character + rows[-1][column + 1 :]
                column += 1
        return [row.rstrip() for row in rows]

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setattr(console, "REDRAW_SECONDS", 0.0)
    opened = Terminal(100)
    yield opened
    opened.close()


def test_the_line_shows_every_figure_that_is_known() -> None:
    assert line(FULL) == (
        "step  120/4000  loss 3.212  val 3.300 (×1.03)  grad 0.800  lr 3.00e-04  12.3k tok/s  MFU 41.2%  mem 1.5 GiB"
        "  data wait 0.4%  ETA 1m 15s"
    )
    assert line(Progress(step=1, total=9, loss=math.nan)) == "step 1/9  loss nan"


@pytest.mark.parametrize("width", range(1, 140))
def test_the_line_fits_any_width_and_drops_whole_figures(width: int) -> None:
    text = line(FULL, width)
    assert cells(text) <= width
    if width >= len("step  120/4000"):
        assert text.startswith("step  120/4000")
        whole = line(FULL).split("  ")
        assert all(part in whole for part in text.split("  ")), "no figure is cut"


def test_the_least_important_figures_go_first() -> None:
    kept = {width: line(FULL, width) for width in (125, 70, 45)}
    assert "mem" not in kept[125] and "MFU" in kept[125]
    assert "MFU" not in kept[70] and "val" in kept[70]
    assert kept[45] == "step  120/4000  loss 3.212  ETA 1m 15s"


def test_a_terminal_shows_one_line_rewritten_in_place(terminal: Terminal) -> None:
    live = LiveLine(terminal.stream, print_every=1000)
    live.update(FULL)
    live.update(Progress(step=121, total=4000, loss=3.1))
    assert terminal.screen() == ["step  121/4000  loss 3.100"], "nothing of the longer line is left over"
    live.close()
    live.close()
    assert terminal.screen() == ["step  121/4000  loss 3.100", ""]


def test_a_note_stands_above_the_live_line(terminal: Terminal) -> None:
    live = LiveLine(terminal.stream, print_every=1000)
    live.note("before the first step")
    live.update(Progress(step=1, total=9, loss=2.0))
    live.note("saved 检查点")
    live.update(Progress(step=2, total=9, loss=1.0))
    assert terminal.screen() == ["before the first step", "saved 检查点", "step 2/9  loss 1.000"]


def test_the_line_follows_the_terminals_width(terminal: Terminal) -> None:
    live = LiveLine(terminal.stream, print_every=1)
    live.update(FULL)
    (wide,) = terminal.screen()
    terminal.resize(40)
    live.update(FULL)
    (narrow,) = terminal.screen()
    assert 60 < cells(wide) < 100 and cells(narrow) < 40


def test_fast_steps_are_not_all_drawn_but_the_last_one_is(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "REDRAW_SECONDS", 3600.0)
    live = LiveLine(terminal.stream, print_every=1)
    for step in range(1, 10):
        live.update(Progress(step=step, total=9, loss=1.0))
    assert re.findall(r"step (\d)/9", terminal.received()) == ["1", "9"]


def test_elsewhere_plain_lines_every_so_many_steps() -> None:
    stream = io.StringIO()
    live = LiveLine(stream, print_every=10)
    for step in range(3, 26):
        live.update(Progress(step=step, total=25, loss=1.0))
        if step == 12:
            live.note("note")
    live.close()
    assert stream.getvalue().splitlines() == [
        "step  3/25  loss 1.000",
        "step 10/25  loss 1.000",
        "note",
        "step 20/25  loss 1.000",
        "step 25/25  loss 1.000",
    ]


def test_plain_lines_are_flushed_at_once(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "log.txt")
    with open(path, "w", encoding="utf-8") as stream:
        LiveLine(stream, print_every=1).update(Progress(step=1, total=2, loss=1.0))
        with open(path, encoding="utf-8") as reader:
            assert reader.read() == "step 1/2  loss 1.000\n"


def test_a_stream_without_the_characters_gets_question_marks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    live = LiveLine(stream, print_every=1)
    live.note("丹炉")
    live.update(FULL)
    assert raw.getvalue().startswith(b"??\nstep") and b"(?1.03)" in raw.getvalue()


def test_the_header_is_aligned_whatever_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    header([("model", "llama-10m"), ("运行目录", "runs/一号"), ("prompts", "first\nsecond")])
    assert capsys.readouterr().out.splitlines() == [
        "  model     llama-10m",
        "  运行目录  runs/一号",
        "  prompts   first",
        "            second",
    ]
    stream = io.StringIO()
    header([], stream)
    assert stream.getvalue() == ""


def test_plain_lines_have_the_means_since_the_line_before() -> None:
    """Two steps of 1 s and 3 s at 1,000 tokens each are 500 tokens/s, and not the mean of 1,000 and 333."""
    stream = io.StringIO()
    live = LiveLine(stream, print_every=2)
    live.update(Progress(step=1, total=8, loss=9.0, tokens_per_second=100.0))
    live.update(Progress(step=2, total=8, loss=5.0, tokens_per_second=200.0, mfu=0.5))
    live.update(Progress(step=3, total=8, loss=4.0, tokens_per_second=1000.0, mfu=0.6, data_wait=0.4))
    live.update(Progress(step=4, total=8, loss=2.0, tokens_per_second=1000 / 3, mfu=0.2, data_wait=0.0))
    live.update(Progress(step=5, total=8, loss=math.nan, tokens_per_second=10.0))
    live.update(Progress(step=6, total=8, loss=3.0, tokens_per_second=10.0))
    live.update(Progress(step=7, total=8, loss=math.nan))
    live.update(Progress(step=8, total=8, loss=math.nan))
    assert stream.getvalue().splitlines() == [
        "step 1/8  loss 9.000  100 tok/s",
        "step 2/8  loss 5.000  200 tok/s  MFU 50.0%",
        "step 4/8  loss 3.000  500 tok/s  MFU 30.0%  data wait 10.0%",
        "step 6/8  loss 3.000  10 tok/s",
        "step 8/8  loss nan",
    ]


def test_a_terminal_has_the_figures_of_the_step(terminal: Terminal) -> None:
    live = LiveLine(terminal.stream, print_every=10)
    live.update(Progress(step=1, total=9, loss=4.0))
    live.update(Progress(step=2, total=9, loss=2.0))
    assert terminal.screen() == ["step 2/9  loss 2.000"]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "1 s"), (4.4, "4 s"), (59.4, "59 s"), (59.6, "1m 00s"), (4000, "1h 07m"), (math.inf, "–")]
)
def test_the_time_left_is_in_whole_seconds(seconds: float, shown: str) -> None:
    assert line(Progress(step=1, total=9, loss=1.0, seconds_left=seconds)).endswith(f"  ETA {shown}")


def test_the_last_line_has_no_time_left() -> None:
    assert line(Progress(step=9, total=9, loss=1.0, seconds_left=0.0)) == "step 9/9  loss 1.000"

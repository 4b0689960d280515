"""The pictures show the simulation: every operation, at its place, and nothing in the gaps."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from danlu.plan import timeline
from danlu.plan.schedule import Cost, Timeline, simulate

SVG = "{http://www.w3.org/2000/svg}"


def line(schedule: str = "1f1b", devices: int = 4, micro_batches: int = 8, chunks: int = 1) -> Timeline:
    cost = Cost(0.01, 0.01, 0.01, 0.002)
    return simulate(schedule, [[cost] * chunks for _ in range(devices)], micro_batches, chunks)  # type: ignore[arg-type]


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)])
def test_every_operation_is_a_box_at_its_time(schedule: str, chunks: int) -> None:
    shown = line(schedule, chunks=chunks)
    root = ET.fromstring(timeline.svg(shown))
    boxes = [each for each in root.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    scale = (timeline.WIDTH - timeline.LEFT - timeline.RIGHT) / shown.seconds
    drawn = sorted((each.get("class", "")[0], float(each.get("y", "")), float(each.get("x", ""))) for each in boxes)
    expected = sorted(
        (o.kind, timeline.TOP + o.device * (timeline.ROW + timeline.GAP), timeline.LEFT + o.start * scale)
        for o in shown.operations
    )
    assert [each[:2] for each in drawn] == [each[:2] for each in expected]
    assert [each[2] for each in drawn] == pytest.approx([each[2] for each in expected], abs=0.01)
    later = [each for each in boxes if "later" in each.get("class", "")]
    assert len(later) == len([o for o in shown.operations if o.chunk == 1])


def test_its_words_are_the_figures() -> None:
    shown = line()
    words = " ".join(each.text or "" for each in ET.fromstring(timeline.svg(shown, "a <note>")).iter(f"{SVG}text"))
    assert f"bubble {shown.bubble:.1%}" in words
    assert "4 devices, 8 micro-batches" in words
    assert "a <note>" in words
    assert "weight gradient" not in words
    assert "weight gradient" in timeline.svg(line("zero-bubble"))


def test_a_large_step_is_paths_and_stays_small() -> None:
    large = line(devices=8, micro_batches=512)
    picture = timeline.svg(large)
    assert picture.count("<path") == 8 * 2
    assert picture.count("h") > len(large.operations)
    assert len(picture) < 400_000
    ET.fromstring(picture)


def test_letters_show_who_works_when() -> None:
    shown = simulate("1f1b", [[Cost(1, 1, 0)], [Cost(1, 1, 0)]], 2)  # six units long, four characters each
    head, first, second, legend = timeline.text(shown, width=24 + len("device 0 "))
    assert "bubble 33.3%" in head
    assert first.removeprefix("device 0 ") == "FFFFFFFF" + "...." + "BBBB" + "...." + "BBBB"
    assert second.removeprefix("device 1 ") == "...." + "FFFFBBBBFFFFBBBB" + "...."
    assert "W " not in legend
    assert "one character is 250 ms" in legend


def test_letters_keep_the_shares_when_cells_hold_many_operations() -> None:
    shown = line(devices=2, micro_batches=400)
    row = timeline.text(shown, width=109)[1].removeprefix("device 0 ")
    mine = [o for o in shown.operations if o.device == 0]
    for kind in "FB":
        share = sum(o.end - o.start for o in mine if o.kind == kind) / shown.seconds
        assert row.count(kind) == pytest.approx(100 * share, abs=2)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0"), (0.0004, "400 us"), (0.0125, "12.5 ms"), (0.9999, "1 s"), (3.21, "3.21 s"), (4321, "4,321 s")]
)
def test_durations(seconds: float, said: str) -> None:
    assert timeline.duration(seconds) == said


@pytest.mark.parametrize(("least", "step"), [(0.3, 0.5), (0.012, 0.02), (1, 1), (3, 5), (70, 100), (0.1, 0.1), (0.099, 0.1)])
def test_steps_of_the_axis(least: float, step: float) -> None:
    assert timeline.nice_step(least) == pytest.approx(step)

"""The demo: a run with a fault from end to end, and what it refuses."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from danlu.demo.faults import FAULTS
from danlu.demo.run import demo, recipe_of
from danlu.engines.torch.mistakes import DAMAGED, MISTAKES
from danlu.errors import UserError
from danlu.watch import store


def test_the_fault_is_found_and_the_folder_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FAULTS,
        "short",
        FAULTS["labels-shifted-twice"].__class__(
            "labels", ("train.steps=20", "train.evaluate_every=0"), FAULTS["labels-shifted-twice"].mistake
        ),
    )
    for _ in range(2):
        stream = io.StringIO()
        demo("short", tmp_path, "en", stream)
    assert "step 10: CRITICAL: labels are shifted twice" in stream.getvalue()
    assert "CRITICAL: labels are shifted twice" in stream.getvalue().split("what the doctor says")[1]
    assert (tmp_path / "demo-short" / "report.html").is_file()
    assert "finding" in {event.kind for event in store.events(tmp_path / "demo-short" / "metrics.sqlite")}


def test_every_fault_has_a_recipe(tmp_path: Path) -> None:
    for name in FAULTS:
        assert recipe_of(name, tmp_path / "x.jsonl").name == f"demo-{name}"
    assert {one.mistake for one in FAULTS.values()} - {None} == set(MISTAKES)
    assert f"batches {DAMAGED.start + 1} to {DAMAGED.stop}" in FAULTS["damaged-shard"].says


def test_what_is_no_demo_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "demo-none").mkdir()
    (tmp_path / "demo-none" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is no demo"):
        demo("none", tmp_path, "en", io.StringIO())
    assert (tmp_path / "demo-none" / "mine.txt").is_file()
    with pytest.raises(UserError, match="no such fault; danlu demo --list"):
        demo("bad", tmp_path, "en", io.StringIO())

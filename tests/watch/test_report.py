"""The report: complete, self-contained, and safe against whatever a model may have written."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from danlu import reporting
from danlu.errors import UserError
from danlu.watch import assets, facts, store
from danlu.watch.report import write_report
from danlu.watch.store import Recorder

HOSTILE = "</script><img src=x onerror=\"alert('pwned')\"><!--<script>\u2028 {{script}} \\u003c 炼丹 🔥 \udc80"


PARTS = [part for part in assets.SCRIPTS if "{" not in part] + [assets.EMBEDDED, assets.SERVER]


class Page(HTMLParser):
    """The parts of a page that matter here, as a browser's parser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.contents: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.contents.setdefault(self._open[-1], []).append(data)

    @property
    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.contents["script"][0])
        return loaded


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run of 60 steps that was resumed at step 31, with every file that a report reads."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    for first, stop in [(1, 41), (31, 61)]:
        with Recorder.open(folder / "metrics.sqlite") as recorder:
            recorder.start_segment(first, {})
            recorder.event(first, "start" if first == 1 else "resume", f"from step {first}")
            for step in range(first, stop):
                recorder.scalars(step, {"train/loss": 9.0 - step / 10, "train/tokens_per_second": 1000.0 + step})
            recorder.event(35, "checkpoint", f"saved in segment {first}")
    with Recorder.open(folder / "metrics.sqlite") as recorder:
        recorder.start_segment(61, {})
        recorder.event(60, "finished", HOSTILE)
    (folder / "recipe.yaml").write_text(
        "name: quickstart\nmodel: {preset: llama-10m}\ntrain: {engine: torch, precision: bf16}\n# 注释 </script>\n",
        encoding="utf-8",
    )
    write_json(folder / "environment.json", {"cpu": "Some CPU", "memory_bytes": 1024, "versions": {"torch": "2.13.0"}})
    write_json(folder / "data" / "index.json", {"train": {"tokens": 10, "shards": [{"file": "a"}]}, "splits": ["a", "b"]})
    (folder / "curated").mkdir()
    (folder / "curated" / "curation.html").write_text("<h1>Curation</h1>", encoding="utf-8")
    write_json(folder / "evaluation.json", {"loss": 3.25, "perplexity": math.inf, "bits_per_byte": 1.1})
    write_json(folder / "samples.json", [{"prompt": "def ", "text": HOSTILE, "step": 60}])
    write_json(folder / "summary.json", {"first_loss": 8.9, "last_loss": 3.0, "seconds": 12.5, "parameters": 11_000_000})
    for step in (20, 40):
        weights = folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(bytes(step))
    (folder / "checkpoints" / "step-00000060.partial").mkdir()
    yield folder


def test_everything_is_in_the_report(run: Path) -> None:
    path = write_report(run)
    assert path == run / "report.html" and not (run / "report.html.partial").exists()
    data = Page(path).data
    assert data["name"] == "quickstart" and data["problems"] == [] and data["status"] == "finished"
    assert data["model"] == {"title": "llama-10m", "parameters": 11_000_000, "settings": ["torch", "bf16"]}
    assert data["headline"] == {
        "first_loss": 8.9,
        "last_loss": 3.0,
        "last_validation_loss": 3.25,
        "perplexity": "inf",
        "steps": 60,
        "seconds": 12.5,
        "tokens_per_second": 1030.5,
    }
    loss = data["curves"]["train/loss"]
    assert loss["x"] == list(range(1, 61)) and loss["y"] == pytest.approx([9.0 - step / 10 for step in range(1, 61)])
    assert [event["kind"] for event in data["events"]] == ["start", "checkpoint", "resume", "checkpoint", "finished"]
    assert [event["replaced"] for event in data["events"]] == [False, True, False, False, False]
    assert data["recipe"] == (run / "recipe.yaml").read_text(encoding="utf-8")
    assert data["environment"] == [["cpu", "Some CPU"], ["memory_bytes", 1024], ["versions.torch", "2.13.0"]]
    assert data["data"] == [["train.tokens", 10], ["splits", "a, b"], ["page", "curated/curation.html"]]
    assert data["evaluation"][:2] == [["loss", 3.25], ["perplexity", "inf"]]
    assert [(checkpoint["step"], checkpoint["bytes"]) for checkpoint in data["checkpoints"]] == [(40, 40), (20, 20)]


def test_hostile_text_stays_text(run: Path) -> None:
    write_json(run / "summary.json", {"name": "</title><script>alert(1)</script>"})
    page = Page(write_report(run))
    assert page.data["samples"] == [{"prompt": "def ", "text": HOSTILE, "step": 60}]
    assert page.data["events"][-1]["message"] == HOSTILE.replace("\udc80", "?"), "the store writes what UTF-8 cannot as ?"
    assert page.contents["title"] == ["</title><script>alert(1)</script> · danlu"]
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2 and "img" not in tags
    assert "{{" not in page.contents["script"][1], "no placeholder is left, and none is filled inside the data"
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_the_script_never_turns_text_into_markup() -> None:
    for part in PARTS:
        script = resources.files("danlu.watch").joinpath(f"page/{part}.js").read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_nothing_is_requested_from_anywhere(run: Path) -> None:
    page = Page(write_report(run))
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "video", "audio", "source")
        assert set(attributes) & {"src", "srcset", "action", "background", "poster", "data"} == set()
        assert attributes.get("href") in (None, "data:,")
    policy = next(
        attributes["content"] for tag, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none';") and "http" not in policy and "*" not in policy
    (style,) = page.contents["style"]
    assert not re.search(r"url\(|@import", style)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|EventSource|import\(|sendBeacon", page.contents["script"][1])
    assert re.findall(r"https?://\S+", page.text) == ["https://github.com/leeoniya/uPlot"], "only the comment that names uPlot"


def test_the_vendored_chart_library_is_whole_and_carries_its_licence(run: Path) -> None:
    vendor = resources.files("danlu.watch").joinpath("vendor")
    script = vendor.joinpath("uPlot.iife.min.js").read_text(encoding="utf-8")
    assert script in Page(write_report(run)).contents["script"][1]
    licence = vendor.joinpath("LICENSE").read_text(encoding="utf-8")
    assert "MIT License" in licence and "Leon Sorokin" in licence


def test_every_word_has_both_languages_and_every_word_used_exists() -> None:
    page = resources.files("danlu.watch").joinpath("page")
    words = page.joinpath("words.js").read_text(encoding="utf-8")
    dictionary = words[words.index("const WORDS") : words.index("let language")]
    entries = dict(re.findall(r'(?m)^  (\w+): \[\s*"(.+?)",?\s*\],?$', dictionary.replace("\n    ", " ")))
    assert len(entries) == len(re.findall(r"(?m)^  \w+: \[", dictionary)) > 60
    for key, text in entries.items():
        english, chinese = re.split(r'",\s*"', text)
        assert english and chinese and not re.search(r"[\u4e00-\u9fff]", english), key
        assert re.search(r"[\u4e00-\u9fff]", chinese) or english == chinese, key
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese)), key
    used = set(re.findall(r'data-word="(\w+)"', page.joinpath("page.html").read_text(encoding="utf-8")))
    for part in PARTS[1:]:
        script = page.joinpath(f"{part}.js").read_text(encoding="utf-8")
        used |= set(re.findall(r'(?:word|tile)\("(\w+)"[,)]', script)) | set(re.findall(r'title: "(\w+)"', script))
        used |= set(re.findall(r'\["\w+/\w+", "(\w+)"', script))
        used |= set(re.findall(r'^  \S+: \["(key_\w+)", \(\) =>', script, re.MULTILINE))
        used |= {f"group_{name}" for name in re.findall(r'group: "(\w+)"', script)}
    used |= {"finished", "stopped", "interrupted", "running", "broken_off"}
    assert {"curves", "thinned", "train_loss", "memory", "perplexity"} <= used <= entries.keys()


def test_missing_files_leave_their_sections_out(tmp_path: Path) -> None:
    folder = tmp_path / "空的"
    folder.mkdir()
    data = Page(write_report(folder)).data
    assert data["name"] == "空的" and data["problems"] == [] and data["status"] is None
    assert not any(
        data[key] for key in ("headline", "curves", "events", "samples", "evaluation", "data", "environment", "recipe")
    )
    assert data["checkpoints"] == []


def test_files_that_cannot_be_read_are_named_and_the_rest_is_shown(run: Path) -> None:
    (run / "metrics.sqlite").write_bytes(b"junk" * 1000)
    (run / "summary.json").write_text("{broken", encoding="utf-8")
    (run / "evaluation.json").write_text("[1, 2]", encoding="utf-8")
    (run / "samples.json").write_bytes(b"\xff\xfe")
    (run / "recipe.yaml").write_text("model: [\n", encoding="utf-8")
    data = Page(write_report(run)).data
    assert [problem.split(":")[0] for problem in data["problems"]] == [
        *("summary.json", "recipe.yaml", "evaluation.json", "metrics.sqlite", "samples.json"),
    ]
    assert str(run) not in json.dumps(data), "a report is passed on: it names no path of this machine"
    assert data["environment"] and data["recipe"] == "model: [\n" and data["name"] == "quickstart"


def test_the_headline_without_a_summary_comes_from_the_metrics(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "evaluation.json").unlink()
    data = Page(write_report(run)).data
    assert data["headline"]["first_loss"] == 8.9 and data["headline"]["last_loss"] == pytest.approx(3.0)
    assert data["headline"]["seconds"] >= 0 and "last_validation_loss" not in data["headline"]


def test_a_diverged_run_says_so(tmp_path: Path) -> None:
    with Recorder.open(tmp_path / "metrics.sqlite") as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 9.0})
        recorder.scalars(1, {"train/loss": math.nan})
        recorder.event(1, "stop", "three steps in a row were not finite")
    data = Page(write_report(tmp_path)).data
    assert data["status"] == "stopped"
    assert data["headline"]["last_loss"] == "nan"
    assert data["curves"]["train/loss"]["y"] == [9.0, None] and data["curves"]["train/loss"]["not_finite"] == 1


def test_a_live_run_and_one_that_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder.open(tmp_path / "metrics.sqlite") as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 9.0})
        recorder.flush()
        assert Page(write_report(tmp_path)).data["status"] == "running"
    later = time.time() + facts.ALIVE_SECONDS + 1
    monkeypatch.setattr("time.time", lambda: later)
    assert Page(write_report(tmp_path)).data["status"] == "broken_off"


def test_many_events_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "EVENTS", 5)
    with Recorder.open(tmp_path / "metrics.sqlite") as recorder:
        recorder.start_segment(0, {})
        for step in range(12):
            recorder.event(step, "skipped_step", "not finite")
    data = Page(write_report(tmp_path)).data
    assert [event["step"] for event in data["events"]] == [7, 8, 9, 10, 11] and data["events_total"] == 12


def test_lost_records_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.05)
    folder = tmp_path / "run"
    with Recorder.open(folder / "metrics.sqlite") as recorder:
        recorder.start_segment(0, {})
        recorder.scalars(0, {"train/loss": 9.0})
        recorder.flush()
        folder.mkdir()
    assert "metrics cannot be stored" in capfd.readouterr().err
    (event,) = Page(write_report(folder)).data["events"]
    assert event["kind"] == "dropped" and event["message"] == "records that could not be stored: 1"


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        write_report(tmp_path / "missing")


def test_a_report_that_cannot_be_written_leaves_the_old_one(run: Path) -> None:
    write_report(run)
    old = (run / "report.html").read_bytes()
    (run / "report.html.partial").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write_report(run)
    assert (run / "report.html").read_bytes() == old


def test_the_report_carries_the_doctors_word(tmp_path: Path) -> None:
    """Of a loss that becomes NaN beside a norm that is infinite; and where the doctor cannot judge, why not."""
    with Recorder.open(tmp_path / "metrics.sqlite") as recorder:
        recorder.start_segment(1, {"steps": 200})
        for step in range(1, 201):
            recorder.scalars(step, {"train/loss": 5.0 - step / 100 if step < 100 else math.nan, "train/gradient_norm": math.inf})
    said = Page(reporting.write_report(tmp_path)).data["doctor"]
    assert (said["state"], said["step"], said["worst"]) == ("ready", 200, "critical")
    assert any(finding["rule"] == "nonfinite" for finding in said["findings"])
    (tmp_path / "recipe.yaml").write_text("name: [", encoding="utf-8")
    said = Page(reporting.write_report(tmp_path)).data["doctor"]
    assert said["state"] == "failed" and "recipe.yaml" in said["error"] and str(tmp_path) not in said["error"]
    assert reporting.diagnosis(tmp_path / "none") is None

"""What a person and a program get to see."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu import recipe as recipes
from danlu.cli import cli
from danlu.doctor import show
from danlu.doctor.diagnose import diagnose
from danlu.doctor.evidence import LOSS
from danlu.doctor.patch import changes, patched
from danlu.errors import EXIT_FOUND, UserError
from danlu.run_folder import RunFolder
from danlu.watch.store import Recorder

from .conftest import evidence, healthy
from .test_rules import CASES, diverges, hot

from click.testing import CliRunner  # isort: skip


def log(path: Path, fault: object = None) -> Path:
    at, values = healthy()
    if fault is not None:
        fault(values, at, np.random.default_rng(1))  # type: ignore[operator]
    rows = zip(at.tolist(), values[LOSS].tolist(), values["train/gradient_norm"].tolist(), strict=True)
    path.write_text("step,train_loss,grad_norm\n" + "".join(f"{step},{loss},{norm}\n" for step, loss, norm in rows))
    return path


def test_a_finding_says_what_why_and_what_next() -> None:
    text = "\n".join(show.lines(diagnose(evidence(hot)), "en"))
    assert text.startswith("CRITICAL: the learning rate is too high  [learning_rate_too_high, confidence ")
    for part in (
        "  why        validation/loss was",
        "  symptoms   ",
        "  considered ",
        "  next       divide",
        "train.optimizer.learning_rate=0.0001",
    ):
        assert part in text
    assert "▁" in text and "█" in text


def test_in_chinese() -> None:
    text = "\n".join(show.lines(diagnose(evidence(hot)), "zh"))
    assert text.startswith("严重: 学习率过高") and "依据" in text and "建议" in text and "why" not in text


def test_silence_is_said_and_what_could_not_be_judged() -> None:
    diagnosis = diagnose(evidence(without=(LOSS,)))
    short, long = list(show.lines(diagnosis, "en")), list(show.lines(diagnosis, "en", True))
    assert short[0] == "nothing found" and "lack the data to judge (--all" in short[1]
    assert any(line.startswith("  spike: train/loss is not recorded") for line in long)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([1, 2.2, 3], "▁▅█"),
        ([1, 1], "▁▁"),
        ([1, math.nan, 3], "▁×█"),
        ([math.inf], "×"),
        ([1, 10, 100, 1000], "▁▃▆█"),  # logarithmic
        (list(range(8)), "▁▂▃▄▅▆▇█"),
    ],
)
def test_sparkline(values: list[float], line: str) -> None:
    assert show.sparkline(np.array(values, dtype=float)) == line


def test_a_long_sparkline_is_thinned_and_keeps_gaps() -> None:
    values = np.arange(1000.0)
    values[500] = math.nan
    line = show.sparkline(values, 20)
    assert len(line) == 20 and line.count("×") == 1 and line[0] == "▁" and line[-1] == "█"


def test_the_verb_and_its_exit_code(tmp_path: Path) -> None:
    runner = CliRunner()
    good, bad = log(tmp_path / "good.csv"), log(tmp_path / "bad.csv", diverges)
    done = runner.invoke(cli, ["doctor", str(good)])
    assert done.exit_code == 0 and "nothing found" in done.output
    done = runner.invoke(cli, ["doctor", str(bad), "learning_rate=1.5", "--json"])
    assert done.exit_code == EXIT_FOUND
    shown = json.loads(done.output)
    assert shown["worst"] == "critical"
    assert shown["findings"][0]["rule"] == "learning_rate_too_high"
    assert shown["findings"][0]["patch"] == {"train.optimizer.learning_rate": 0.5}
    assert {one["rule"] for one in shown["findings"][0]["symptoms"]} >= {"divergence"}
    assert "divergence" not in shown["not_enough_data"] and shown["not_enough_data"]["straggler"]
    done = runner.invoke(cli, ["doctor", str(bad), "--language", "zh", "--all"])
    assert done.exit_code == EXIT_FOUND and "损失" in done.output


def test_the_language_is_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = log(tmp_path / "good.csv")
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert "nothing found" in CliRunner().invoke(cli, ["doctor", str(good)]).output
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "没有发现问题" in CliRunner().invoke(cli, ["doctor", str(good)]).output


def test_the_list_of_rules() -> None:
    done = CliRunner().invoke(cli, ["doctor", "rules"])
    assert done.exit_code == 0 and "overfitting " in done.output
    rules = json.loads(CliRunner().invoke(cli, ["doctor", "rules", "--json"]).output)
    assert {"rule", "threshold", "origin", "cost", "severity"} <= set(rules[0])


def test_the_recipe_that_the_findings_ask_for(tmp_path: Path) -> None:
    sections = {"model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}}
    recipe = recipes.parse({"name": "first", **sections, "train": {"steps": 600, "optimizer": {"learning_rate": 1.0}}})
    run = RunFolder.create(recipe, tmp_path / "first")
    at, values = healthy()
    diverges(values, at, np.random.default_rng(1))
    with Recorder.open(run.metrics) as recorder:
        recorder.start_segment(1, {})
        for index, step in enumerate(at.tolist()):
            recorder.scalars(step, {LOSS: values[LOSS][index]})
    calmer = tmp_path / "calmer.yaml"
    done = CliRunner().invoke(cli, ["doctor", "apply", str(run.path), "--to", str(calmer)])
    assert done.exit_code == 0 and "train.optimizer.learning_rate: 0.003" in done.output
    wanted = recipes.load(calmer)
    assert wanted.name == "calmer" and wanted.train.optimizer.learning_rate == 3e-3
    assert wanted.model_copy(update={"name": "first", "train": recipe.train}) == recipe
    again = CliRunner().invoke(cli, ["doctor", "apply", str(run.path), "--to", str(calmer)])
    assert isinstance(again.exception, UserError) and "is there already" in str(again.exception)
    nowhere = CliRunner().invoke(cli, ["doctor", "apply", str(run.path), "--to", str(tmp_path / "nowhere" / "x.yaml")])
    assert isinstance(nowhere.exception, UserError) and "cannot be written" in str(nowhere.exception)


def test_nothing_to_change(run_copy: RunFolder, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "apply", str(run_copy.path), "--to", str(tmp_path / "next.yaml")])
    assert done.exit_code == 0 and done.output.startswith("nothing to change")
    assert not (tmp_path / "next.yaml").exists()


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[1].__name__}" for case in CASES])
def test_every_change_makes_a_valid_recipe(tmp_path: Path, case: Any) -> None:
    _, fault, _, settings = case
    changed = changes(diagnose(evidence(fault, **settings)).findings)
    path = tmp_path / "recipe.yaml"
    path.write_text('{"name": "a", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}}')
    if changed:
        assert patched(path, changed, "b").name == "b"


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(log(tmp_path / "good.csv")), "learning_rate"])
    assert isinstance(done.exception, UserError) and "write it like learning_rate=3e-4" in str(done.exception)

"""The score on labelled logs: counts by label, groups, causes; a folder that is none is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from danlu.doctor import score
from danlu.doctor.evidence import LOSS, VALIDATION

from .conftest import Fault, evidence
from .test_rules import diverges, overfits

HEAD = "file,source_repo,group,hyperparameters,label,kind\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven runs, one of which is labelled healthy and is not."""
    rows = [HEAD]

    def add(label: str, group: str, fault: Fault | None, seed: int) -> None:
        name = f"{len(rows)}.parquet"
        one = evidence(fault, seed)
        parts = [(one.signals[signal], metric) for signal, metric in ((LOSS, "train_loss"), (VALIDATION, "val_loss"))]
        parquet.write_table(
            arrow.table(
                {
                    "step": [step for part, _ in parts for step in part.steps],
                    "metric": [metric for part, metric in parts for _ in part.steps],
                    "value": [value for part, _ in parts for value in part.values],
                }
            ),
            tmp_path / name,
        )
        rows.append(f'{name},somebody/logs,{group},"{{""learning_rate"": 0.001}}",{label},{label}\n')

    for seed in range(3):
        add("healthy", "a", None, seed)
    add("healthy", "b", diverges, 3)
    add("broken", "c", diverges, 4)
    add("overfit", "d", overfits, 5)
    add("unknown", "e", None, 6)
    (tmp_path / "manifest.csv").write_text("".join(rows))
    return tmp_path


def test_the_table_and_the_figures(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score.main([str(folder), "--json", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures == {
        "healthy_runs": 4,
        "healthy_flagged": 1,
        "healthy_groups": 2,
        "healthy_group_share_flagged": 0.5,
        "broken_runs": 1,
        "broken_noticed": 1,
        "overfit_runs": 1,
        "overfit_noticed": 1,
    }
    shown = capsys.readouterr().out
    assert "false alarm: 4.parquet (b): divergence" in shown and "overfitting 1" in shown and "missed" not in shown
    assert "half 0" in shown and "half 1" in shown


def test_as_if_the_runs_were_live(folder: Path, tmp_path: Path) -> None:
    assert score.main([str(folder), "--until", "0.5", "--json", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert (figures["healthy_flagged"], figures["broken_noticed"], figures["broken_runs"]) == (0, 0, 1)


def test_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(score.VARIABLE, raising=False)
    assert score.main([]) == 2
    assert "make doctor-score RUNS=FOLDER" in capsys.readouterr().err
    assert score.main([str(tmp_path)]) == 2
    assert "there is no such manifest" in capsys.readouterr().err
    (tmp_path / "manifest.csv").write_text("file,label\na,healthy\n")
    monkeypatch.setenv(score.VARIABLE, str(tmp_path))
    assert score.main([]) == 2
    error = capsys.readouterr().err
    assert "has no column group, hyperparameters, kind, source_repo" in error and len(error.splitlines()) == 1

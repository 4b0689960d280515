"""Metrics for other programs, read back by other libraries and by the doctor; and users' own figures."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

import danlu.watch
from danlu.cli import cli
from danlu.doctor.load import load
from danlu.errors import UserError
from danlu.watch import store, tables
from danlu.watch.histogram import histogram

VALUES = {"mine/a": [0.1 + 0.2, math.nan, -math.inf], "mine/b": [1e-300, 2.0, 3.0], "other/c": [4.0, 5.0, 6.0]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "mine"
    with danlu.watch.log_to(folder) as log:
        for step in range(3):
            log.scalars(step + 1, {name: values[step] for name, values in VALUES.items()})
        log.histograms(3, {"mine/spread": histogram(np.arange(10))})
        log.event(3, "note", "三步")
    return folder


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["metrics", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def same(found: list[float], expected: list[float]) -> bool:
    return np.array_equal(found, expected, equal_nan=True)


def test_csv_and_json_hold_every_value_exactly(run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(str(run), "--csv"))))
    told = json.loads(printed(str(run), "--json"))
    for name, values in VALUES.items():
        assert same([float(row["value"]) for row in rows if row["metric"] == name], values)
        assert told[name]["steps"] == [1, 2, 3]
        assert same([float(value) for value in told[name]["values"]], values)
    assert told.keys() == VALUES.keys()


def test_parquet_is_read_by_pyarrow_and_by_the_doctor(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "metrics.parquet"
    assert "wrote" in printed(str(run), "--parquet", "--to", str(file), "--metric", "mine/*")
    table = parquet.read_table(file).to_pylist()
    assert {row["metric"] for row in table} == {"mine/a", "mine/b"}
    assert same([row["value"] for row in table if row["metric"] == "mine/a"], VALUES["mine/a"])
    assert same(load(file).signals["mine/b"].values.tolist(), VALUES["mine/b"])


def test_a_csv_in_a_file_is_the_one_on_the_screen(run: Path, tmp_path: Path) -> None:
    printed(str(run / "metrics.sqlite"), "--csv", "--to", str(tmp_path / "m.csv"))
    assert (tmp_path / "m.csv").read_text() == printed(str(run), "--csv")


def test_a_table_for_people_has_a_line_a_metric(run: Path) -> None:
    header, *lines = printed(str(run), "--metric", "other/?", "--metric", "mine/a").splitlines()
    assert header.split() == ["metric", "points", "first", "last", "least", "most"]
    assert [line.split() for line in lines] == [
        ["mine/a", "3", "0.3", "-inf", "0.3", "0.3"],
        ["other/c", "3", "4", "6", "4", "6"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "tran/*"], "no metric is called 'tran/\\*'.*mine, other"),
        (["--csv", "--json"], "exclude each other"),
        (["--parquet"], "name a file with --to"),
        (["--to", "x"], "needs --csv or --parquet"),
    ],
)
def test_what_cannot_be_is_said(run: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(cli, ["metrics", str(run), *arguments], catch_exceptions=False)


def test_a_table_that_cannot_be_made_leaves_the_file_that_is_there(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("as it was")
    with pytest.raises(UserError, match="no metric is called"):
        printed(str(run), "--metric", "tran/*", "--csv", "--to", str(file))
    assert file.read_text() == "as it was"


def test_a_folder_without_metrics_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no metrics\.sqlite"):
        tables.metrics_file(tmp_path)
    with pytest.raises(UserError, match=r"holds no metrics\.sqlite"):
        tables.metrics_file(tmp_path / "missing")


def test_what_a_user_logs_is_in_the_run(run: Path) -> None:
    metrics = run / "metrics.sqlite"
    assert store.histograms(metrics, "mine/spread").counts.sum() == 10
    assert [event.message for event in store.events(metrics)] == ["三步"]
    with danlu.watch.log_to(run) as log:
        log.scalars(4, {"mine/a": 7.0})
    assert len(store.segments(metrics)) == 1 and store.series(metrics, "mine/a")[0].tolist() == [1, 2, 3, 4]

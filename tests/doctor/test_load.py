"""The same run from danlu's own metrics, from Parquet and from CSV; what is missing stays missing; bad files are one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from danlu import recipe as recipes
from danlu.doctor.evidence import EVALUATED, GRADIENT, LOSS, RATE, VALIDATION
from danlu.doctor.load import check_given, check_known, load, read_facts
from danlu.doctor.series import series
from danlu.errors import UserError
from danlu.run_folder import RunFolder
from danlu.watch.logs import renamed
from danlu.watch.store import Recorder


def long_table(path: Path, **columns: list) -> Path:
    parquet.write_table(arrow.table(columns), path)
    return path


def test_a_run_folder(tmp_path: Path) -> None:
    recipe = recipes.parse(
        {
            "name": "first",
            "model": {"preset": "llama-5m"},
            "data": {"sources": [{"path": "x"}]},
            "train": {"steps": 200, "schedule": {"warmup_fraction": 0.1}},
        }
    )
    run = RunFolder.create(recipe, tmp_path / "first")
    with Recorder.open(run.metrics) as recorder:
        recorder.start_segment(1, {})
        for step in range(1, 11):
            recorder.scalars(step, {LOSS: 5.0 - step / 10, GRADIENT: float("nan") if step == 4 else 1.0})
        recorder.start_segment(8, {})
        recorder.scalars(8, {LOSS: 9.0})
    one = load(run.path)
    assert one.own and list(one.resumes) == [8] and one.name == "first"
    assert one.need(LOSS).steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8] and one.need(LOSS).values[-1] == 9.0
    assert np.isnan(one.need(GRADIENT).values[3])
    assert one.get(VALIDATION) is None
    assert one.number("train.optimizer.learning_rate") == 3e-4
    assert one.warmup_end() == 20
    assert load(run.metrics).signals.keys() == one.signals.keys()


def test_a_run_that_has_not_trained_yet(tmp_path: Path) -> None:
    recipe = recipes.parse({"name": "first", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "x"}]}})
    run = RunFolder.create(recipe, tmp_path / "first")
    with pytest.raises(UserError, match="no such metrics file"):
        load(run.path)


def test_parquet_and_csv_hold_the_same(tmp_path: Path) -> None:
    steps, metric, value = [1, 2, 2, 3], ["train_loss", "train_loss", "val_loss", "train_loss"], [3.0, 2.5, 2.75, float("inf")]
    first = load(long_table(tmp_path / "a.parquet", step=steps, metric=metric, value=value))
    (tmp_path / "b.csv").write_text(
        "step,metric,value\n" + "".join(f"{s},{m},{v}\n" for s, m, v in zip(steps, metric, value, strict=True))
    )
    (tmp_path / "c.csv").write_text("iteration,train_loss,val_loss,note\n1,3,,warm\n2,2.5,2.75,\n3,inf,,\n", encoding="utf-8-sig")
    for other in (first, load(tmp_path / "b.csv"), load(tmp_path / "c.csv")):
        assert set(other.signals) == {LOSS, VALIDATION} and not other.own
        assert other.need(LOSS).values.tolist() == [3.0, 2.5, float("inf")]
        assert other.need(VALIDATION).steps.tolist() == [2]


def test_a_dictionary_column_is_read_too(tmp_path: Path) -> None:
    metric = arrow.array(["lr", "lr"]).dictionary_encode()
    parquet.write_table(arrow.table({"step": [1, 2], "metric": metric, "value": [0.1, 0.2]}), tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet").need(RATE).values.tolist() == [0.1, 0.2]


def test_names_of_other_programs() -> None:
    one = series([1], [1.0])
    both = renamed({"train_loss": one, "train/loss": series([1], [2.0]), "own": one})
    assert both[LOSS].values[0] == 1.0 and both[EVALUATED].values[0] == 2.0 and set(both) == {LOSS, EVALUATED, "own"}
    assert set(renamed({"train/loss": one, "grad_norm": one})) == {LOSS, GRADIENT}


def test_settings_under_their_usual_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n1,2\n")
    facts = load(path, {"lr": 0.01, "warmup_steps_fraction": 0.1, "max_steps": 1000, "odd": True}).facts
    assert facts["train.optimizer.learning_rate"] == 0.01 and facts["train.steps"] == 1000 and facts["odd"] is True
    assert load(path, facts).warmup_end() == 100
    assert load(path).number("train.optimizer.learning_rate") is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "loss\n1\n", "no column for the step"),
        ("a.csv", "", "is empty; a log begins with"),
        ("a.csv", "step,loss\n", "holds no metrics"),
        ("a.csv", "step,loss\nx,1\n", "line 2: the step is 'x'"),
        ("a.csv", "step,metric,value\n1,loss,x\n", "line 2: the value of loss is 'x'"),
        ("a.csv", "step,loss\n1,\xff\n", "cannot be read as CSV"),
        ("a.parquet", "no parquet", "cannot be read as Parquet"),
        ("a.txt", "step", "neither a run folder nor"),
        ("a.sqlite", "no database, but longer than its header would have to be" * 20, "cannot be read as metrics"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1 and name in str(caught.value)


def test_a_table_of_other_columns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no column metric, value"):
        load(long_table(tmp_path / "a.parquet", step=[1], loss=[2.0]))
    with pytest.raises(UserError, match="step must hold integers"):
        load(long_table(tmp_path / "b.parquet", step=["one"], metric=["loss"], value=[2.0]))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"learning_rate": "abc"}, r"setting learning_rate=abc: is no number; write it like learning_rate=3e-4"),
        ({"lr": math.inf}, r"setting lr=inf: is no number"),
        ({"learning_rat": 1.0}, r"setting learning_rat: there is none of that name; did you mean learning_rate\?"),
        ({"qqq": 1.0}, r"setting qqq: there is none of that name; give a recipe's field, or one of: .*warmup_steps"),
    ],
)
def test_a_setting_that_no_rule_can_know_is_refused(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_given(facts)


def test_settings_that_rules_know() -> None:
    check_given({"lr": 0.1, "precision": "bf16", "train.schedule.final_ratio": 0.1, "run.vocabulary": 50257.0})


def test_a_run_folder_has_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UserError, match="holds its own settings; leave learning_rate out"):
        load(tmp_path, {"learning_rate": 1.0})


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder or file"):
        load(tmp_path / "absent")
    with pytest.raises(UserError, match="not a run folder"):
        load(tmp_path)


@pytest.mark.parametrize(("text", "facts"), [('{"a": 1}', {"a": 1}), ("", {}), ("[1]", {}), ("{", {})])
def test_facts_of_a_manifest(text: str, facts: dict) -> None:
    assert read_facts(text) == facts


@pytest.mark.parametrize("name", ["Loss", "Train Loss", "TRAIN-LOSS", "train_loss"])
def test_a_name_in_any_spelling_is_known(tmp_path: Path, name: str) -> None:
    (log := tmp_path / "log.csv").write_text(f"Step,{name}\n1,3.5\n2,nan\n")
    evidence = load(log)
    check_known(log, evidence)
    assert evidence.signals[LOSS].values[0] == 3.5 and math.isnan(evidence.signals[LOSS].values[1])


def test_a_log_of_unknown_names_does_not_pass_for_healthy(tmp_path: Path) -> None:
    (log := tmp_path / "log.csv").write_text("step,losses\n1,nan\n")
    with pytest.raises(UserError, match=r"holds nothing that is known here \(losses\); call the training loss train_loss"):
        check_known(log, load(log))


def test_two_columns_of_one_name_do_not_hide_each_other(tmp_path: Path) -> None:
    (log := tmp_path / "log.csv").write_text("step,loss,loss\n1,nan,3\n")
    with pytest.raises(UserError, match="has two columns 'loss'; give them names of their own"):
        load(log)

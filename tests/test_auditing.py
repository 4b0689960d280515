"""Audits on the command line, and ahead of a training."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from danlu.doctor.audit.audit import all_audits
from danlu.errors import EXIT_FOUND, EXIT_USAGE
from danlu.run_folder import RunFolder
from danlu.watch import store

from .conftest import Outcome

Danlu = Callable[..., Outcome]


def test_a_healthy_run_and_its_recipe_are_clean(danlu: Danlu, trained_folder: tuple[RunFolder, str]) -> None:
    run, printed = trained_folder
    assert "before step 1" not in printed
    made = danlu("doctor", "audit", run.path, "--json")
    assert made.code == 0
    told = json.loads(made.out)
    assert told["findings"] == []
    assert {"usual_batches", "tokenizer_coverage", "order_of_samples", "memory_plan"} <= set(told["silent"])
    assert danlu("doctor", "audit", run.recipe_file, "--runs", run.path.parent).code == 0


def test_a_finding_is_told_in_both_languages_and_by_the_exit_code(danlu: Danlu, recipe_file: Path, tmp_path: Path) -> None:
    command = ("doctor", "audit", recipe_file, "train.optimizer.learning_rate=1", "--runs", tmp_path / "none")
    english, chinese = danlu(*command, "--all"), danlu(*command, "--language", "zh")
    assert (english.code, chinese.code) == (EXIT_FOUND, EXIT_FOUND)
    assert "WARNING: the learning rate 1 is far above what is usual  [usual_rates" in english.out
    assert "repeated_epochs: the data is not prepared yet" in english.out
    assert "警告: 学习率 1 远高于常用值" in chinese.out
    assert "项检查没有发现问题" in chinese.out
    assert not (tmp_path / "none").exists()


def test_sources_that_are_not_there_are_one_line(danlu: Danlu, recipe_file: Path) -> None:
    made = danlu("doctor", "audit", recipe_file, "data.sources=[{path: /nowhere}]")
    assert made.code == EXIT_USAGE
    assert "data.sources[0].path" in made.err


def test_training_tells_what_the_cheap_ones_find_and_records_it(danlu: Danlu, recipe_file: Path, tmp_path: Path) -> None:
    settings = ("train.steps=2", "train.optimizer.weight_decay=5", "train.evaluate_every=0")
    made = danlu("train", recipe_file, "--runs", tmp_path, *settings)
    assert made.code == 0
    assert "before step 1: WARNING: weight decay strikes what it should not, or too hard [weight_decay]" in made.out
    events = [event for event in store.events(tmp_path / "tiny" / "metrics.sqlite") if event.kind == "audit"]
    assert events[0].data["finding"]["rule"] == "weight_decay"
    assert events[0].step == 0


def test_quick_asks_what_training_asks_and_says_how_long_it_takes(danlu: Danlu, trained_folder: tuple[RunFolder, str]) -> None:
    made = danlu("doctor", "audit", trained_folder[0].path, "--quick", "--json")
    asked = {*json.loads(made.out)["silent"], *json.loads(made.out)["not_enough_data"]}
    assert asked == {audit.id for audit in all_audits() if audit.at_start}
    assert re.fullmatch(r"\d+\.\d+ s\n", made.err)


def test_a_doctor_that_is_off_audits_nothing(danlu: Danlu, recipe_file: Path, tmp_path: Path) -> None:
    settings = ("train.steps=1", "train.optimizer.weight_decay=5", "doctor.every=0")
    assert "before step 1" not in danlu("train", recipe_file, "--runs", tmp_path, *settings).out

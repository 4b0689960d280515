"""Two runs side by side: planted differences are found at the step where they were planted, and twins are the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from danlu.doctor import evidence as names
from danlu.doctor.diff.compare import Difference, Run, compare, verdict
from danlu.doctor.diff.curves import HASH, parting
from danlu.doctor.diff.show import as_json, lines
from danlu.doctor.evidence import Evidence
from danlu.doctor.series import series
from danlu.run_folder import RunFolder

from ..conftest import Outcome
from .conftest import Fault, evidence

Danlu = Callable[..., Outcome]


def hashed(one: Evidence, shift: int = 0) -> Evidence:
    """With the batches that it trained on."""
    steps = np.arange(1, 601)
    return replace(one, signals={**one.signals, HASH: series(steps, np.sin(steps + shift) * 1e14)})


def side(fault: Fault | None = None, seed: int = 0, shift: int = 0, **facts: object) -> Run:
    made = hashed(evidence(fault, seed), shift)
    return Run("run", replace(made, facts={**made.facts, **facts}), {"fingerprint": "a"}, {"torch": "2.9"})


def held(other: Run) -> Difference:
    return compare(side(), other)


def test_twins_are_the_same() -> None:
    found = held(side())
    assert not found.settings
    assert found.first is None
    assert verdict(found).en == "the same curves over 600 steps; settings and data are the same"


@pytest.mark.parametrize("seed", range(1, 13))
def test_another_seed_stays_within_the_noise(seed: int) -> None:
    found = held(side(seed=seed, shift=3, **{"train.seed": seed}))
    assert found.parted is None
    assert found.first is not None
    assert found.first.name == HASH
    assert f"train.seed – → {seed}" in verdict(found).en


@pytest.mark.parametrize("at", [1, 40, 300, 500])
def test_a_loss_that_leaves_is_found_where_it_leaves(at: int) -> None:
    def fault(values: dict[str, np.ndarray], steps: np.ndarray, noise: np.random.Generator) -> None:
        values[names.LOSS] += np.where(steps >= at, 0.2, 0.0)

    found = held(side(fault))
    assert found.first is not None
    assert found.parted is not None
    assert (found.first.name, found.first.differs) == (names.LOSS, at)
    assert found.parted.name == names.LOSS
    assert abs((found.parted.parts or 0) - at) <= 3  # one standard deviation of the mean of a window


def test_a_spike_that_comes_back_is_no_parting() -> None:
    def fault(values: dict[str, np.ndarray], steps: np.ndarray, noise: np.random.Generator) -> None:
        values[names.LOSS][200:205] += 3.0

    found = held(side(fault))
    assert found.parted is None
    assert found.first is not None
    assert found.first.differs == 201


def test_a_run_that_becomes_nan_has_parted_there() -> None:
    def fault(values: dict[str, np.ndarray], steps: np.ndarray, noise: np.random.Generator) -> None:
        values[names.LOSS][399:] = np.nan

    found = held(side(fault))
    assert found.parted is not None
    assert found.parted.parts == 400
    assert as_json(found)["signals"][[one.name for one in found.signals].index(names.LOSS)]["values"][1] == "nan"
    json.dumps(as_json(found), allow_nan=False)


def test_the_verdict_names_the_setting_that_the_first_signal_hangs_on() -> None:
    def fault(values: dict[str, np.ndarray], steps: np.ndarray, noise: np.random.Generator) -> None:
        values[names.RATE] *= np.where(steps >= 101, 1.001, 1.0)

    found = held(side(fault, **{"train.optimizer.learning_rate": 3.003e-4, "checkpoint.keep": 9}))
    told = verdict(found).en
    assert "train/learning_rate differs first, at step 101" in told
    assert "train.optimizer.learning_rate 0.0003 → 0.0003003" in told
    assert "checkpoint.keep" not in told
    assert {change.name for change in found.settings} == {"train.optimizer.learning_rate", "checkpoint.keep"}


def test_an_environment_is_named_where_nothing_else_differs() -> None:
    other = replace(side(seed=1), environment={"torch": "2.10"})
    assert verdict(held(other)).en.endswith("the environment differs: torch 2.9 → 2.10")


def test_other_data_is_named_where_the_settings_are_the_same() -> None:
    assert verdict(held(replace(side(seed=1), data={"fingerprint": "b"}))).en.endswith("the data differs")


def test_what_a_log_does_not_hold_is_not_the_same_but_unknown() -> None:
    log = Run("log.csv", Evidence(side(seed=1).evidence.signals), {}, {})
    found = held(log)
    assert verdict(found).en.endswith("what was set is not known")
    assert [line.split()[1:] for line in lines(found, "en")][1:4] == [["not", "known"]] * 3
    assert as_json(found)["settings"] is None


def test_few_points_are_not_judged_by_their_noise() -> None:
    found = parting("validation/loss", series([1, 2, 3], [3.0, 2.0, 1.0]), series([1, 2, 3], [3.0, 2.1, 1.2]))
    assert found is not None
    assert (found.differs, found.parts, found.noise) == (2, None, None)


def test_runs_without_a_common_step_say_so() -> None:
    assert parting("a", series([1], [1.0]), series([2], [1.0])) is None
    empty = Run("log", Evidence({}), {}, {})
    assert verdict(compare(empty, side())).en == "the runs have no signal in common"
    assert next(lines(compare(empty, side()), "zh")) == "两次运行没有共同的信号"


def test_run_folders_on_the_command_line(danlu: Danlu, run_copy: RunFolder, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run_copy.path, tmp_path / "other"))
    recipe = other / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace("seed: 0", "seed: 7"), encoding="utf-8")
    environment = json.loads((other / "environment.json").read_text("utf-8"))
    (other / "environment.json").write_text(json.dumps(environment | {"torch": "0.1"}), encoding="utf-8")
    made = danlu("doctor", "diff", run_copy.path, other)
    assert made.code == 0
    assert made.out.startswith("the same curves over 12 steps; set differently: train.seed 0 → 7")
    told = json.loads(danlu("doctor", "diff", run_copy.path, other, "--json").out)
    assert told["settings"] == [{"name": f"{section}.seed", "first": 0, "second": 7} for section in ("train", "generate")]
    assert [change["name"] for change in told["environment"]] == ["torch"]
    assert told["data"] == []
    assert told["first_step"] is None
    assert "曲线完全相同" in danlu("doctor", "diff", run_copy.path, other, "--language", "zh").out


def test_what_is_no_run_is_one_line(danlu: Danlu, run_copy: RunFolder, tmp_path: Path) -> None:
    made = danlu("doctor", "diff", run_copy.path, tmp_path / "nothing")
    assert made.code == 2
    assert "nothing" in made.err

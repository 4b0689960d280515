"""Some of the equality matrix's combinations, all of its faults and some moving checkpoints; `make parity` runs the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN = Path(__file__).with_name("run.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    figures = tmp_path_factory.mktemp("parity") / "figures.json"
    command = [sys.executable, str(RUN), "--quick", "--json", str(figures)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert figures.is_file(), ended.stderr
    made: dict[str, Any] = json.loads(figures.read_text())
    return made | {"code": ended.returncode}


def results(outcome: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {name: result for name, result in outcome["results"].items() if name.startswith(f"{kind} ")}


def wrong(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: result.get("failed", result) for name, result in results.items() if not result.get("good")}


def test_layouts_train_as_one_process_does(outcome: dict[str, Any]) -> None:
    """20 steps from the same weights: loss within 1e-5, gradient norm and final weights within 1e-4."""
    found = results(outcome, "case")
    assert len(found) == 19
    assert not wrong(found)
    for name, result in found.items():
        if "bf16" not in name:  # its tolerance is another
            assert result["done"]["loss"] <= 1e-5 and result["done"]["norm"] <= 1e-4 and result["done"]["weights"] <= 1e-4, name


def test_recomputation_and_offload_give_the_same_bits(outcome: dict[str, Any]) -> None:
    found = {name: result for name, result in results(outcome, "case").items() if "selective" in name or "disk" in name}
    assert len(found) == 3 and all(result["done"]["same_bits"] for result in found.values())


def test_a_checkpoint_goes_on_in_another_layout(outcome: dict[str, Any]) -> None:
    """Optimizer states included, the curve of 10 + 10 steps is that of 20 in one process; all of it is saved again unchanged."""
    found = results(outcome, "load")
    assert len(found) == 5
    assert not wrong(found) and not wrong(results(outcome, "save"))
    assert all(result["done"]["same_save"] for result in found.values())


def test_every_planted_fault_is_caught(outcome: dict[str, Any]) -> None:
    """By a difference: a process that fails is no proof that the comparison sees anything."""
    found = results(outcome, "fault")
    assert len(found) == outcome["faults_planted"] == outcome["faults_caught"] >= 8
    for name, result in found.items():
        assert result["done"] and not result["good"], name


def test_the_figures(outcome: dict[str, Any]) -> None:
    assert outcome["code"] == 0
    assert outcome["failed"] == 0
    assert outcome["combinations"] == 24


def test_a_combination_that_cannot_be_is_a_failure(tmp_path: Path) -> None:
    """An error in the processes of one combination ends that one, is told, and does not keep the next from its turn."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.argv[1:] = ['--json', sys.argv[2]]; import cases, run; "
        "run.jobs_of = lambda *_: [[('reference', 'one llama packed b8')], [('case', 'd2 b7'), ('case', 'd2')]]; "
        "sys.exit(run.main())"
    )
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-c", script, str(RUN.parent), str(figures)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    made = json.loads(figures.read_text())
    assert ended.returncode == 1
    assert (made["combinations"], made["failed"]) == (2, 1)
    assert "7 is not divisible by parallel.data (2)" in ended.stderr
    assert made["results"]["case d2"]["good"] is True

"""Some layouts of the paddle engine beside one process, all of its faults and a moving checkpoint.

The rest is for `make parity ENGINE=paddle`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    figures = tmp_path_factory.mktemp("parity") / "figures.json"
    command = [sys.executable, str(RUN), "--engine", "paddle", "--quick", "--json", str(figures)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert figures.is_file(), ended.stderr
    made: dict[str, Any] = json.loads(figures.read_text())
    return made | {"code": ended.returncode, "said": ended.stderr}


@pytest.mark.slow
def test_layouts_train_as_one_process_does_and_checkpoints_move(outcome: dict[str, Any]) -> None:
    """20 steps from the same weights: loss within 1e-5, gradient norm and final weights within 1e-4.

    After it the same statistics and tokens.
    """
    found = {name: result for name, result in outcome["results"].items() if name.split()[0] in ("case", "load")}
    assert len(found) == outcome["combinations"] == 9
    for name, result in found.items():
        assert result.get("good"), (name, result, outcome["said"])
        done = result["done"]
        assert done["loss"] <= 1e-5 and done["norm"] <= 1e-4 and done["weights"] <= 1e-4 and done["same_sums"], name
        assert done.get("same_tokens", " sp " in name) and done.get("same_save", name.startswith("case")), name
    assert outcome["failed"] == 0


@pytest.mark.slow
def test_every_planted_fault_is_caught(outcome: dict[str, Any]) -> None:
    """By a difference: a process that fails is no proof that the comparison sees anything."""
    found = {name: result for name, result in outcome["results"].items() if name.startswith("fault ")}
    assert len(found) == outcome["faults_planted"] == 18
    assert outcome["faults_caught"] == 18, {name: result for name, result in found.items() if result.get("good")}


def test_a_symbol_that_paddle_has_moved_ends_the_rehearsal() -> None:
    code = (
        "from danlu.engines.paddle import process; import paddle, danlu.engines.paddle.rehearsal as rehearsal; "
        "del paddle._C_ops.c_identity; rehearsal.begin()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert "has no paddle.base.libpaddle.pir.ops.c_identity, which the rehearsal on CPUs stands in for" in ended.stderr

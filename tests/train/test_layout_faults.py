"""What goes wrong on clusters, planted on one rank of a real `danlu train`: the run ends soon, and the rank at fault is named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.data.prepared import Prepared
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).parents[1] / "faults"
SETTINGS = ("train.steps=100000", "checkpoint.every=100000", "watch.print_every=1", "watch.hang_seconds=5")
PIPELINE = ("parallel.pipeline=2", "memory.micro_batch=4")
AFTER = "and the others were stopped; run the same command to go on from the last checkpoint"

Train = Callable[..., tuple[int, str, Path]]


@pytest.fixture
def train(recipe_of: Callable[..., Recipe], prepared: Prepared, tmp_path: Path) -> Train:
    """Train with a fault in one rank; exit code, all that was printed, and the logs."""

    def start(fault: str, *overrides: str) -> tuple[int, str, Path]:
        folder = tmp_path / "tiny"
        RunFolder.create(recipe_of(*SETTINGS, *overrides), folder)
        shutil.copytree(prepared.folder, folder / "data")
        path = os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")])
        ended = subprocess.run(
            [sys.executable, "-m", "danlu", "train", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            env=os.environ | {"OMP_NUM_THREADS": "1", "DANLU_FAULT": fault, "PYTHONPATH": path},
        )
        return ended.returncode, ended.stdout, folder / "logs"

    return start


@pytest.mark.parametrize(
    ("layout", "rank", "waits"),
    [
        (PIPELINE, 0, "a send or receive of the pipeline"),
        (("parallel.tensor=2",), 0, "gloo:all_reduce of group"),
    ],
    ids=["pipeline", "tensor"],
)
def test_a_rank_that_sleeps(train: Train, layout: tuple[str, ...], rank: int, waits: str) -> None:
    """The culprit is the one in no collective; the others are said to wait for it, and in what."""
    code, printed, logs = train(f"sleeps:{rank}:3", *layout)
    assert code == 1, printed
    last = printed.splitlines()[-1]
    assert re.match(rf"danlu: no progress for \d+ seconds: rank {rank} is in no collective, but at sleeps ", last), printed
    assert f"the others wait for it: rank {1 - rank} in {waits}" in last
    report = (logs / "hang.txt").read_text("utf-8")
    assert "in sleeps\n" in report and f"rank {1 - rank} (" in report


def test_an_exception_is_shown_and_not_what_came_of_it(train: Train) -> None:
    code, printed, _ = train("raises:1:3", "parallel.data=2", "parallel.zero_stage=3")
    assert code == 1
    assert printed.count("Traceback") == 1
    *_, error, last = printed.splitlines()
    assert error == "ValueError: planted on this rank alone"
    assert last == f"danlu: rank 1 failed (ValueError: planted on this rank alone), {AFTER}"


def test_an_exit_while_the_others_are_in_a_collective(train: Train) -> None:
    code, printed, _ = train("leaves:0:3", "parallel.tensor=2", "parallel.sequence_parallel=true")
    assert code == 1
    assert printed.splitlines()[-1] == f"danlu: rank 0 ended with exit code 5 and no error, {AFTER}"
    assert "Traceback" not in printed

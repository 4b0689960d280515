"""`danlu train` with several processes: the curve of one, checkpoints that change the layout, ranks that fail or are stopped."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from training import Training

from danlu.data.prepared import Prepared
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder
from danlu.watch import store

pytestmark = pytest.mark.slow

RecipeOf = Callable[..., Recipe]
CURVES = ("train/loss", "train/gradient_norm", "train/learning_rate", "validation/loss", "validation/ratio")
SETTINGS = ("train.evaluate_every=3", "checkpoint.every=4", "checkpoint.keep=3", "watch.print_every=1")
ENDLESS = ("train.steps=100000", "checkpoint.every=100000", "train.evaluate_every=0", "watch.print_every=1")


class Layout(Training):
    """A training and the ranks that it starts."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        super().__init__(folder, *overrides)
        self.all: list[psutil.Process] = []

    def ranks(self) -> dict[int, psutil.Process]:
        """Wait for two steps; the process of each rank."""
        steps = (line for line in self.lines() if re.match(r"step +\d+/\d+ ", line))
        for _ in range(2):
            assert next(steps, None) is not None, "".join(self.printed)
        self.all = psutil.Process(self.process.pid).children(recursive=True)
        return {int(each.environ()["RANK"]): each for each in self.all if each.ppid() == self.process.pid}

    def end(self) -> tuple[int, str]:
        """Exit code and all that was printed; no process may be left."""
        ended = super().end()
        _, alive = psutil.wait_procs(self.all, timeout=20)
        assert not alive
        return ended


@pytest.fixture(scope="module")
def fresh(recipe_of: RecipeOf, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A new run folder, its data prepared and nothing trained."""

    def make(*overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "tiny"
        RunFolder.create(recipe_of(*overrides), folder)
        shutil.copytree(prepared.folder, folder / "data")
        return folder

    return make


def finish(folder: Path, *overrides: str) -> str:
    code, printed = Layout(folder, *overrides).end()
    assert code == 0, printed
    return printed


def curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    found = {name: store.series(folder / "metrics.sqlite", name) for name in CURVES}
    return {name: (steps.tolist(), values.tolist()) for name, (steps, values) in found.items()}


def forget(folder: Path, *steps: int) -> None:
    for step in steps:
        shutil.rmtree(folder / "checkpoints" / f"step-{step:08d}")


def exported(folder: Path) -> bytes:
    command = [sys.executable, "-m", "danlu", "export", str(folder), "--to", str(folder / "out"), "--replace"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return (folder / "out" / "model.safetensors").read_bytes()


def test_a_run_moves_from_layout_to_layout_on_one_curve(fresh: Callable[..., Path]) -> None:
    """Two replicas, then two tensor ranks from step 4, then a pipeline from step 8: the 12 steps of one process."""
    alone, moved = fresh(*SETTINGS), fresh(*SETTINGS)
    finish(alone)
    wanted = curves(alone)

    def assert_same_curve() -> None:
        for name, (steps, values) in curves(moved).items():
            assert steps == wanted[name][0], name
            assert values == pytest.approx(wanted[name][1], rel=1e-5), name

    printed = finish(moved, "parallel={data: 2, zero_stage: 1}")
    assert "2 processes: data 2, ZeRO 1" in printed
    assert_same_curve()
    four = moved.with_name("four")
    shutil.copytree(moved, four)
    forget(four, 8, 12)
    first = exported(four)

    forget(moved, 8, 12)
    printed = finish(moved, "parallel={tensor: 2, sequence_parallel: true}", "checkpoint.asynchronous=true")
    assert "after step 4 of 12" in printed and "2 processes: tensor 2" in printed
    assert_same_curve()

    forget(moved, 12)
    printed = finish(moved, "parallel={pipeline: 2}", "memory.micro_batch=4")
    assert "after step 8 of 12" in printed and "2 processes: pipeline 2" in printed
    assert_same_curve()
    # Each rank wrote its own part; one process reads them all, to evaluate or to go on.
    parts = [f"{kind}-{rank:05d}.safetensors" for kind in ("optimizer", "weights") for rank in range(2)]
    assert sorted(path.name for path in (moved / "checkpoints" / "step-00000012").glob("*.safetensors")) == parts
    assert "already trained" in finish(moved, "parallel={}")
    subprocess.run([sys.executable, "-m", "danlu", "evaluate", str(moved)], check=True, capture_output=True, timeout=120)

    forget(moved, 8, 12)
    assert exported(moved) == first


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_the_run(fresh: Callable[..., Path], victim: int) -> None:
    """All ranks and their loaders end within 10 seconds, none is left, and the last line names the rank that went first."""
    training = Layout(fresh(*ENDLESS, "parallel.data=2", "data.workers=1"))
    training.ranks()[victim].kill()
    killed = time.monotonic()
    code, printed = training.end()
    assert time.monotonic() - killed < 10
    assert code == 1
    assert printed.splitlines()[-1] == (
        f"danlu: rank {victim} was ended by signal 9 (as the kernel does when memory runs out), and the others were stopped; "
        "run the same command to go on from the last checkpoint"
    )
    assert "Traceback" not in printed


def test_a_rank_whose_disk_is_full_stops_the_run(fresh: Callable[..., Path]) -> None:
    """The second one, while it trains on; the first one has written its part."""
    folder = fresh(*ENDLESS, "parallel.data=2", "checkpoint.every=25", "checkpoint.asynchronous=true")
    training = Layout(folder)
    resource.prlimit(training.ranks()[1].pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
    code, printed = training.end()
    assert code == 3, printed
    assert re.fullmatch(
        r"danlu: \S+/step-\d+: the checkpoint could not be written: the file size limit is reached; "
        r"(the last good one is \S+|there is none before it); make room and run the same command to go on",
        printed.splitlines()[-1],
    ), printed
    assert not list(folder.glob("checkpoints/*.partial")) and "Traceback" not in printed


def test_ranks_end_with_a_launcher_that_is_killed(fresh: Callable[..., Path]) -> None:
    training = Layout(fresh(*ENDLESS, "parallel.data=2"))
    training.ranks()
    training.process.kill()
    assert training.end()[0] == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_the_run_goes_on(fresh: Callable[..., Path], number: signal.Signals) -> None:
    """As Ctrl-C in a terminal, which reaches every process of the session, and as a scheduler's SIGTERM."""
    folder = fresh(*ENDLESS, "parallel.data=2")
    training = Layout(folder)
    training.ranks()
    os.killpg(training.process.pid, number)
    code, printed = training.end()
    assert code == 130, printed
    last = re.fullmatch(
        r"danlu: stopped after step (\d+) of 100000 with a checkpoint; run the same command to go on", printed.splitlines()[-1]
    )
    assert last, printed
    assert "Traceback" not in printed
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{int(last[1]):08d}"]


def test_a_run_that_stops_itself_says_why(fresh: Callable[..., Path]) -> None:
    """The one line of the error and its exit code, from whichever rank was first; nothing of torchrun's own account."""
    folder = fresh(
        "train.steps=50", "parallel.data=2", "train.optimizer.learning_rate=1e30", "train.optimizer.gradient_clipping=0"
    )
    code, printed = Layout(folder).end()
    assert code == 3, printed
    said = r"danlu: 3 steps in a row were not finite and were skipped; stopped after step \d+\. Checkpoint \d+ holds"
    assert re.match(said, printed.splitlines()[-1])
    assert "Traceback" not in printed and "elastic" not in printed


def test_an_error_that_only_the_ranks_can_see(fresh: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # also on a machine that has one
    code, printed = Layout(fresh("parallel.data=2", "train.device=cuda")).end()
    assert code == 2, printed
    assert printed.splitlines()[-1] == "danlu: train.device: cuda was asked for, but torch sees no GPU here; use train.device=cpu"
    assert "Traceback" not in printed


def test_another_number_of_processes_than_the_layout(fresh: Callable[..., Path]) -> None:
    """As when somebody starts torchrun himself; it does not wait for the others."""
    folder = fresh("parallel.data=2")
    command = [sys.executable, "-m", "danlu", "worker", str(folder)]
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("danlu: parallel: data x tensor x pipeline = 2, but 3 processes were started")

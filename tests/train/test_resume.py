"""Real `danlu train` processes that are killed, interrupted and starved of disk, and what comes of the run afterwards.

Every run here has the same recipe, and each must end with the curves and the bytes of the one that nothing disturbed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training import Training

from danlu.data.prepared import Prepared
from danlu.engines.base import Engine
from danlu.recipe import Recipe
from danlu.run_folder import RunFolder
from danlu.train import checkpoint
from danlu.watch import store

pytestmark = pytest.mark.slow

RecipeOf = Callable[..., Recipe]
CURVES = ("train/loss", "train/gradient_norm", "train/learning_rate", "validation/loss", "validation/ratio")
STEPS = 180
SETTINGS = (
    f"train.steps={STEPS}",
    "train.evaluate_every=10",
    "train.evaluate_tokens=512",
    "checkpoint.every=5",
    "watch.print_every=1",
    "data.workers=1",
)


class Resumable(Training):
    """A training that is stopped in every way."""

    def wait_for_steps(self, number: int) -> str:
        """Read on until this many more steps are done; return the line of the last."""
        for _ in range(number):
            line = self.wait_for(r"step +\d+/\d+ ")
        return line

    def signal_all(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill the training process; its loader's process notices within seconds, and nobody waits for that."""
        self.process.kill()
        assert self.process.wait(60) == -signal.SIGKILL
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def fresh(recipe_of: RecipeOf, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A new run folder, its data prepared and nothing trained; settings beyond those of all runs may be given."""

    def make(*overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "tiny"
        RunFolder.create(recipe_of(*SETTINGS, *overrides), folder)
        shutil.copytree(prepared.folder, folder / "data")
        return folder

    return make


@pytest.fixture(scope="module")
def undisturbed(fresh: Callable[..., Path]) -> Path:
    folder = fresh()
    code, printed = Resumable(folder).end()
    assert code == 0, printed
    return folder


def curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    found = {name: store.series(folder / "metrics.sqlite", name) for name in CURVES}
    return {name: (steps.tolist(), values.tolist()) for name, (steps, values) in found.items()}


def events(folder: Path) -> list[store.Event]:
    return store.events(folder / "metrics.sqlite")


def newest(folder: Path) -> checkpoint.Checkpoint:
    found = checkpoint.latest(folder / "checkpoints", lambda line: pytest.fail(line))
    assert found is not None
    return found


def assert_same(folder: Path, wanted: Path) -> None:
    """Curves equal to the last bit, tensors equal to the byte, and the same position but for what was timed."""
    assert curves(folder) == curves(wanted)
    found, other = newest(folder), newest(wanted)
    assert found.step == other.step
    for name in ("model.safetensors", "optimizer-00000.safetensors"):
        assert (found.path / name).read_bytes() == (other.path / name).read_bytes(), name
    for state in (found.state, other.state):
        assert state["position"].pop("step_seconds") > 0
        assert state["position"].pop("peak") > 0
    assert found.state == other.state
    assert not list((folder / "checkpoints").glob("*.partial"))
    assert events(folder)[-2].kind == "finished"


def status(folder: Path) -> Any:
    """What the report says of the run."""
    from danlu.watch.report import collect

    return collect(folder)["status"]


def test_the_undisturbed_run(undisturbed: Path) -> None:
    """The others are held against it, so that it must be what it seems."""
    found = curves(undisturbed)
    assert found["train/loss"][0] == list(range(1, STEPS + 1))
    assert found["validation/loss"][0] == list(range(10, STEPS + 1, 10))
    assert found["train/loss"][1][-1] < 0.25 * found["train/loss"][1][0]
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert summary["first_loss"] == found["train/loss"][1][0]
    assert summary["last_validation_loss"] == found["validation/loss"][1][-1]
    assert status(undisturbed) == "finished"


def kill_inside_a_save(training: Resumable, folder: Path, draw: random.Random) -> str:
    """Stop the process when a checkpoint is half written, look that it is, and kill it; returns what was written of it."""
    while True:
        while not (partial := next(folder.glob("checkpoints/*.partial"), None)):
            assert training.process.poll() is None, "".join(training.printed)
            time.sleep(0.001)
        time.sleep(draw.random() * 0.01)
        training.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, training.process.pid, os.WSTOPPED | os.WNOWAIT)
        if partial.exists():
            written = sorted(path.name for path in partial.iterdir())
            training.kill()
            assert partial.exists()
            return " ".join(written)
        training.process.send_signal(signal.SIGCONT)


def test_killed_at_ten_random_moments(fresh: Callable[..., Path], undisturbed: Path) -> None:
    """Every other time it saves while it trains on."""
    folder, draw = fresh(), random.Random(0)
    moments = []
    for number in range(10):
        training = Resumable(folder, f"checkpoint.asynchronous={'true' if number % 2 else 'false'}")
        if number % 3 == 1:
            training.wait_for_steps(draw.randint(1, 4))
            # Nobody reads what it prints from here on; a pipe holds some hundred lines.
            moments.append("inside a save: " + kill_inside_a_save(training, folder, draw))
        else:
            steps = draw.randint(0, 11)
            line = training.wait_for_steps(steps) if steps else training.wait_for("  model")
            time.sleep(draw.random() * 0.02)
            training.kill()
            moments.append(f"after {line.split('  loss')[0].strip()}")
        assert status(folder) in ("running", "broken_off")
    assert sum(moment.startswith("inside a save") for moment in moments) == 3, moments
    code, printed = Resumable(folder).end()
    assert code == 0, printed
    assert_same(folder, undisturbed)
    assert status(folder) == "finished"
    resumed = [event for event in events(folder) if event.kind == "resume"]
    assert len(resumed) >= 5, moments


def test_interrupted_once_by_a_person_and_once_by_a_scheduler(fresh: Callable[..., Path], undisturbed: Path) -> None:
    """The signal reaches the loader's process too, as a terminal's Ctrl-C, `timeout` and SLURM have it."""
    folder, firsts = fresh(), [1]
    for number in (signal.SIGINT, signal.SIGTERM):
        training = Resumable(folder, f"checkpoint.asynchronous={'true' if number == signal.SIGINT else 'false'}")
        training.wait_for_steps(23)
        training.signal_all(number)
        code, printed = training.end()
        assert code == 130, printed
        assert "finishing this step and saving" in printed
        assert "Traceback" not in printed
        step = newest(folder).step
        assert step >= firsts[-1] + 22
        assert printed.splitlines()[-1] == (
            f"danlu: stopped after step {step} of {STEPS} with a checkpoint; run the same command to go on"
        )
        assert f"after {step} of {STEPS} steps" in printed
        assert events(folder)[-1].kind == "interrupted"
        assert status(folder) == "interrupted"
        firsts.append(step + 1)
    code, printed = Resumable(folder).end()
    assert code == 0, printed
    assert_same(folder, undisturbed)
    assert [segment.first_step for segment in store.segments(folder / "metrics.sqlite")] == firsts


def test_interrupted_twice(
    fresh: Callable[..., Path],
    run: Callable[..., Any],
    torch_engine: Callable[[Recipe], Engine],
    recipe_of: RecipeOf,
    tmp_path: Path,
) -> None:
    """Steps of about a second, so that the second Ctrl-C finds the first one's step unfinished."""
    slow = ("train.steps=3", "checkpoint.every=1", "train.global_batch=1024")
    folder = fresh(*slow)
    training = Resumable(folder)
    training.wait_for_steps(1)
    while not (folder / "checkpoints" / "step-00000001").exists():
        assert training.process.poll() is None
    time.sleep(0.2)
    training.signal_all(signal.SIGINT)
    training.wait_for("interrupted: finishing this step and saving; Ctrl-C once more stops at once")
    training.signal_all(signal.SIGINT)
    code, printed = training.end()
    assert code == 130, printed
    assert printed.splitlines()[-1] == "danlu: stopped at once; what was saved before is intact"
    assert "Traceback" not in printed
    assert "step 2/3" not in printed
    assert newest(folder).step == 1
    assert (events(folder)[-1].kind, events(folder)[-1].message) == ("interrupted", "stopped at once")
    code, printed = Resumable(folder).end()
    assert code == 0, printed
    (tmp_path / "undisturbed").mkdir()
    recipe = recipe_of(*SETTINGS, *slow)
    run(recipe, torch_engine(recipe), tmp_path / "undisturbed")
    assert_same(folder, tmp_path / "undisturbed")


def test_a_disk_that_fills_up_while_saving(fresh: Callable[..., Path], undisturbed: Path) -> None:
    """The kernel refuses to let a file grow any more: in the middle of the weights, and after a resume of the optimizer."""
    sizes = {path.name: path.stat().st_size for path in newest(undisturbed).path.iterdir()}
    assert sizes["model.safetensors"] * 1.5 < sizes["optimizer-00000.safetensors"]
    folder = fresh()
    for file, background in (("model.safetensors", "true"), ("optimizer-00000.safetensors", "false")):
        training = Resumable(folder, f"checkpoint.asynchronous={background}")
        training.wait_for_steps(12)
        limit = int(sizes[file] * 0.7)
        resource.prlimit(training.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        code, printed = training.end()
        assert code == 3, printed
        assert "Traceback" not in printed
        kept = newest(folder)
        failed = kept.path.with_name(f"step-{kept.step + 5:08d}")
        assert printed.splitlines()[-1] == (
            f"danlu: {failed}: the checkpoint could not be written: the file size limit is reached; "
            f"the last good one is {kept.path}; make room and run the same command to go on"
        )
        assert sorted(path.name for path in (folder / "checkpoints").iterdir())[-1] == kept.path.name, "no partial one is left"
        assert events(folder)[-1].kind == "stop"
        assert status(folder) == "stopped"
    code, printed = Resumable(folder).end()
    assert code == 0, printed
    assert_same(folder, undisturbed)

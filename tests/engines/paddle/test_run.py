"""`danlu` with `train.engine: paddle` from outside: a run that changes to it on the way, resumes, and is used.

Without PyTorch: paddle's processes cannot find it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from danlu.run_folder import RunFolder
from danlu.watch import store

pytestmark = pytest.mark.slow
FAULTS = Path(__file__).parents[2] / "faults"


def by_paddle(*arguments: object) -> str:
    command = [sys.executable, "-m", "danlu", *map(str, arguments)]
    path = os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "DANLU_FAULT": "absent:torch"}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def losses(run: RunFolder) -> np.ndarray:
    return store.series(run.metrics, "train/loss")[1]


def forget(run: RunFolder, *steps: int) -> None:
    for step in steps:
        shutil.rmtree(run.checkpoints / f"step-{step:08d}")


def test_a_run_of_torch_goes_on_with_paddle_and_back(run_copy: RunFolder, danlu: Callable[..., Any]) -> None:
    """Checkpoints are of steps 5, 10 and 12. With two workers that load, and saving in the background."""
    torch_alone = losses(run_copy)
    weights = load_file(run_copy.checkpoints / "step-00000012" / "model.safetensors")
    forget(run_copy, 10, 12)
    by_paddle("train", run_copy.path, "train.engine=paddle", "data.workers=2", "checkpoint.asynchronous=true")
    both = losses(run_copy)
    np.testing.assert_allclose(both, torch_alone, rtol=1e-4)
    assert not np.array_equal(both[5:], torch_alone[5:])  # another framework rounds otherwise

    forget(run_copy, 12)
    by_paddle("train", run_copy.path, "train.engine=paddle")
    assert np.array_equal(losses(run_copy), both)  # bit for bit

    forget(run_copy, 12)
    assert danlu("train", run_copy.path, "train.engine=torch").code == 0
    np.testing.assert_allclose(losses(run_copy), torch_alone, rtol=1e-4)
    end = load_file(run_copy.checkpoints / "step-00000012" / "model.safetensors")
    for name, tensor in weights.items():
        assert np.linalg.norm(end[name] - tensor) <= 1e-3 * np.linalg.norm(tensor), name


def test_a_trained_run_is_measured_continued_and_exported(run_copy: RunFolder, danlu: Callable[..., Any]) -> None:
    """With the same figures and, greedily, the same text as torch's."""
    greedy = ("--prompt", "the ", "--temperature", "0", "--max-tokens", "12")
    by_torch = danlu("evaluate", run_copy.path).out, danlu("generate", run_copy.path, *greedy).out
    text = run_copy.recipe_file.read_text("utf-8")
    assert "engine: torch" in text
    run_copy.recipe_file.write_text(text.replace("engine: torch", "engine: paddle"), "utf-8")
    assert (by_paddle("evaluate", run_copy.path), by_paddle("generate", run_copy.path, *greedy)) == by_torch
    by_paddle("export", run_copy.path)
    weights = load_file(run_copy.checkpoints / "step-00000012" / "model.safetensors")
    exported = load_file(run_copy.export / "model.safetensors")
    assert weights.keys() == exported.keys()
    assert all(np.array_equal(exported[name], weights[name]) for name in weights)

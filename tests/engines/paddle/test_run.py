"""`danlu` with `train.engine: paddle` from outside: a run that changes to it on the way, resumes, and is used.

Without PyTorch: paddle's processes cannot find it.
"""

from __future__ import annotations

import json
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
    by_paddle("train", run_copy.path, "train.engine=paddle", "--profile", "steps=11:12")
    assert np.array_equal(losses(run_copy), both)  # bit for bit, profiled or not
    profile = json.loads(danlu("profile", run_copy.path, "--json").out)[0]
    assert profile["steps"] == [11, 12] and {"matmul_grad", "adamw"} <= {row["name"] for row in profile["operators"]}

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


def test_conversations_are_learned_as_torch_learns_them(run_copy: RunFolder, danlu: Callable[..., Any], tmp_path: Path) -> None:
    """Packed ones with document masks, restarted positions and supervised answers, from the same folder."""
    base = tmp_path / "base"
    assert danlu("export", run_copy.path, "--to", base).code == 0
    turns = [[f"What is {n} plus {m}?", f"It is {n + m}."] for n in range(30) for m in range(2)]
    records = [
        {"messages": [{"role": r, "content": c} for r, c in zip(("user", "assistant"), turn, strict=True)]} for turn in turns
    ]
    conversations = tmp_path / "chat.jsonl"
    conversations.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(
        f"""
name: sft
stages: [prepare, train]
model: {{hugging_face: {base}}}
data:
  sources: [{{path: {conversations}}}]
  tokenizer: {{path: {base}}}
  sequence_length: 64
  validation_fraction: 0.1
  chat: {{template: chatml}}
train: {{objective: sft, device: cpu, steps: 6, global_batch: 4, optimizer: {{learning_rate: 1.0e-3}}}}
memory: {{micro_batch: 2}}
""",
        "utf-8",
    )
    runs = {engine: RunFolder(tmp_path / "runs" / engine) for engine in ("torch", "paddle")}
    assert danlu("run", recipe, "--runs", tmp_path / "runs", "name=torch").code == 0
    by_paddle("run", recipe, "--runs", tmp_path / "runs", "name=paddle", "train.engine=paddle")
    found, wanted = losses(runs["paddle"]), losses(runs["torch"])
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert len(wanted) == 6 and wanted[-1] < wanted[0]

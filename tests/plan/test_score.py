"""Published rows: read whatever they say, skip with a reason what cannot be read; the figures; constants fitted back."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.errors import UserError
from danlu.plan.constants import Rates, priors
from danlu.plan.fit import fit
from danlu.plan.parameters import trainable_parameters
from danlu.plan.published import Run, hardware_of, read, run
from danlu.plan.score import predict, score
from danlu.plan.step_time import step_time

# arXiv 2205.05198, table 5, and litgpt's resource tables; the first two columns of numbers are what is measured.
ROW = {
    "id": "22b",
    "source": "activation-paper",
    "hardware": "A100-80GB-SXM",
    "gpus": "8",
    "layers": "48",
    "hidden": "6144",
    "ffn": "24576",
    "heads": "64",
    "vocab": "51200",
    "gated_mlp": "false",
    "sequence": "2048",
    "precision": "fp16",
    "tensor_parallel": "8",
    "micro_batch": "4",
    "global_batch": "4",
    "recompute": "full",
    "step_seconds": "1.42",
    "outcome": "ok",
}
LORA = {
    "id": "7b",
    "source": "litgpt",
    "hardware": "A100-40GB",
    "gpus": "1",
    "layers": "32",
    "hidden": "4096",
    "ffn": "11008",
    "heads": "32",
    "vocab": "32000",
    "sequence": "1304",
    "precision": "bf16-true",
    "micro_batch": "1",
    "global_batch": "128",
    "optimizer_states": "LoRA rank 8 on query and value, 4194304 trainable parameters, everything in bf16",
    "peak_memory_gb": "21.30",
    "memory_unit": "GB",
}
OOM = {**LORA, "id": "7b-4", "micro_batch": "4", "peak_memory_gb": "", "outcome": "oom"}


def folder(path: Path, *rows: dict[str, str], rankings: str = "") -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with (path / "steps.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    if rankings:
        (path / "rankings.csv").write_text(rankings, "utf-8")
    return path


def test_figures(tmp_path: Path) -> None:
    rankings = "id_better,id_worse,metric\n7b,7b-4,feasibility\n7b,gone,throughput\n"
    rows = read(folder(tmp_path, ROW, LORA, OOM, rankings=rankings))
    _, figures = score(rows)
    assert (figures["step_rows"], figures["memory_rows"], figures["oom_rows"], figures["rankings"]) == (1, 1, 1, 1)
    assert (figures["oom_right"], figures["rankings_right"], figures["bound_violations"]) == (1, 1, 0)
    assert figures["step_mean_abs_error"] < 0.1 and figures["memory_mean_abs_error"] < 0.1
    assert rows.skipped == {"7b > gone": "no row gone"}


def test_command_writes_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "danlu.plan.score", str(folder(tmp_path, ROW, LORA)), "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))["step_rows"] == 1
    assert "22b" in done.stdout and "step_mean_abs_error" in done.stdout
    missing = subprocess.run([*command[:3], str(tmp_path / "none")], capture_output=True, text=True)
    assert missing.returncode == 2 and missing.stderr.startswith("Error: ") and missing.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"hardware": "V100-32GB"}, "hardware"),
        ({"hardware": ""}, "hardware"),
        ({"layers": ""}, "layers"),
        ({"hidden": "wide"}, "hidden"),
        ({"micro_batch": "0"}, "micro_batch"),
        ({"pipeline_parallel": "99"}, "pipeline"),
        ({"memory_unit": "bushel"}, "bushel"),
    ],
)
def test_skipped_with_a_reason(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    rows = read(folder(tmp_path, {**ROW, **change}, LORA))
    assert list(rows.runs) == ["7b"] and reason in rows.skipped["22b"]


@pytest.mark.parametrize(
    "change",
    [
        {"source": "somebody-else"},
        {"precision": "float8 rowwise"},
        {"precision": ""},
        {"recompute": ""},
        {"optimizer_states": "unheard-of optimizer"},
        {"virtual_stages": "2", "pipeline_parallel": "2", "gpus": "16", "global_batch": "20"},
    ],
)
def test_tolerant(change: dict[str, str]) -> None:
    assert predict(run({**ROW, **change})).seconds > 0


def test_notes_tell_adapters_and_quantisation() -> None:
    job = run(LORA).job
    assert job.lora is not None and job.pure and trainable_parameters(job) == (4_194_304,)
    four = run({**LORA, "precision": "bf16-true, bnb.nf4"}).job
    assert four.lora is not None and four.lora.base_bits == 4.5
    every = run({**LORA, "optimizer_states": "LoRA rank 16 on all linear layers"}).job
    assert every.lora is not None and len(every.lora.used) == 7
    assert run({**LORA, "optimizer_states": "full fine-tuning, AdamW"}).job.lora is None


@pytest.mark.parametrize(
    "text, name",
    [
        ("A100-80GB-SXM", "a100-80gb"),
        ("NVIDIA A100 40GB", "a100-40gb"),
        ("H100-96GB", "h100-96gb"),
        ("H100", "h100-80gb"),
        ("H200-141GB", "h200"),
        ("A10G-24GB", "a10g-24gb"),
        ("RTX 4090", "rtx-4090"),
    ],
)
def test_names_of_hardware(text: str, name: str) -> None:
    assert hardware_of(text).name == name


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"steps\.csv"):
        read(tmp_path)


def test_fit_finds_the_constants_that_made_the_rows() -> None:
    prior = Rates.model_validate(priors()["ampere"])
    truth = prior.model_copy(update={"matmul": prior.matmul * 0.85})
    runs = []
    for layers in (12, 24, 48):
        made = run({**ROW, "id": str(layers), "layers": str(layers)})
        runs.append(Run(**{**vars(made), "step_seconds": step_time(made.job, made.hardware, truth).seconds}))
    found = fit(runs, prior)
    assert abs(found.matmul / truth.matmul - 1) < 0.5 * abs(prior.matmul / truth.matmul - 1)  # three rows against a prior
    for each in runs:
        assert step_time(each.job, each.hardware, found).seconds == pytest.approx(each.step_seconds, rel=0.03)

"""Published rows of a folder (steps.csv, rankings.csv) as jobs. Columns are described in the folder's README.

Tolerant: an unknown source gets danlu's implementation, an unknown precision word the width it names; a row that cannot be read
is skipped with its reason.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from danlu.errors import UserError
from danlu.plan.hardware import Hardware, load, names
from danlu.plan.job import Dimensions, Job, Lora

ENGINES = {
    "activation-paper": "megatron",
    "megatron-sc21": "megatron-2021",
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "litgpt": "litgpt",
}
"""Which software a source measured."""


@dataclass(frozen=True)
class Run:
    """One measured row."""

    id: str
    source: str
    job: Job
    hardware: Hardware
    step_seconds: float | None
    memory: float | None
    """Bytes."""
    reserved: bool
    """The memory is what the allocator reserved, not what tensors took."""
    outcome: str
    suspect: bool
    """The source's own notes say that the memory figure is not to be calibrated on."""


@dataclass(frozen=True)
class Ranking:
    """Of two rows, which is better by a metric."""

    better: str
    worse: str
    metric: str
    ratio: float | None


@dataclass(frozen=True)
class Rows:
    """What a folder holds."""

    runs: dict[str, Run]
    rankings: list[Ranking]
    skipped: dict[str, str]
    """Row ids and why they were left out."""


def read(folder: Path) -> Rows:
    """All rows of a folder. UserError: there is no steps.csv in it."""
    steps = folder / "steps.csv"
    if not steps.is_file():
        raise UserError(f"{folder}: no steps.csv there; give the folder of published rows, as in make planner-score ROWS=folder")
    runs, skipped = {}, {}
    for number, row in enumerate(_table(steps), 2):
        identity = row.get("id") or f"line {number}"
        try:
            runs[identity] = run(row)
        except (UserError, ValueError, KeyError) as error:
            skipped[identity] = f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
    rankings = []
    for row in _table(folder / "rankings.csv"):
        pair = (row["id_better"], row["id_worse"])
        missing = [each for each in pair if each not in runs]
        if missing:
            skipped[" > ".join(pair)] = f"no row {missing[0]}"
        else:
            rankings.append(Ranking(*pair, row.get("metric") or "throughput", _number(row, "ratio")))
    return Rows(runs, rankings, skipped)


def run(row: dict[str, str]) -> Run:
    """One row of steps.csv. UserError or ValueError: what cannot be understood."""
    job = _job(row)
    unit = {"gib": 2**30, "gb": 1e9, "mib": 2**20, "mb": 1e6}[(row.get("memory_unit") or "GB").lower()]
    peak = _number(row, "peak_memory_gb")
    notes = row.get("notes", "").lower()
    step = _number(row, "step_seconds")
    rate = _number(row, "tokens_per_s_per_gpu")
    if step is None and rate:
        step = job.global_batch * job.sequence / (rate * job.devices)
    return Run(
        id=row["id"],
        source=row.get("source", ""),
        job=job,
        hardware=hardware_of(row.get("hardware", ""), job.engine_name),
        step_seconds=step,
        memory=None if peak is None else peak * unit,
        reserved=bool(re.search(r"peak \W*reserved", notes)),
        outcome=(row.get("outcome") or "ok").lower(),
        suspect="suspect" in notes,
    )


def hardware_of(text: str, engine_name: str = "") -> Hardware:
    """The shipped device that a name such as A100-80GB-SXM means: most words in common, the first number deciding."""
    words = re.findall(r"[a-z]+\d+[a-z]*|\d+(?=gb)|\d{4}", text.lower())
    if not words:
        raise UserError(f"hardware: {text!r} names no device")
    best, score = "", 0
    for name in names():
        parts = re.findall(r"[a-z]+\d+[a-z]*|\d+(?=gb)|\d{4}", name)
        common = sum(2 if i == 0 else 1 for i, part in enumerate(words) if part in parts)
        if common > score and words[0] in parts:
            best, score = name, common
    if not best:
        raise UserError(f"hardware: {text!r} is none of {', '.join(names())}")
    return load(best)


def _job(row: dict[str, str]) -> Job:
    notes = f"{row.get('notes', '')} {row.get('optimizer_states', '')}".lower()
    engine_name = ENGINES.get(row.get("source", ""), "danlu")
    heads, hidden = _integer(row, "heads"), _integer(row, "hidden")
    gated = _flag(row, "gated_mlp", True)
    dimensions = Dimensions(
        layers=_integer(row, "layers"),
        hidden=hidden,
        ffn=_integer(row, "ffn"),
        heads=heads,
        kv_heads=_integer(row, "kv_heads", heads),
        vocab=_integer(row, "vocab"),
        # The tables have no column for it, and Gemma's heads are wider than its hidden state divided by them.
        head_size=_integer(row, "head_size", 256 if "gemma" in row.get("model_name", "").lower() else hidden // heads),
        tied_embeddings=_flag(row, "tied_embeddings", False),
        gated_mlp=gated,
        positions=_integer(row, "sequence") if not gated and engine_name.startswith("megatron") else 0,
    )
    word = (row.get("precision") or "bf16").lower()
    virtual = _integer(row, "virtual_stages", 1)
    gpus = _integer(row, "gpus", 1)
    tensor, pipeline = _integer(row, "tensor_parallel", 1), _integer(row, "pipeline_parallel", 1)
    context = _integer(row, "context_parallel", 1)
    data = _integer(row, "data_parallel", max(1, gpus // (tensor * pipeline * context)))
    micro = _integer(row, "micro_batch", 1)
    zero = _integer(row, "zero_stage", 0)
    return Job(
        dimensions=dimensions,
        sequence=_integer(row, "sequence"),
        micro_batch=micro,
        global_batch=_integer(row, "global_batch", micro * data),
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        virtual_stages=virtual,
        schedule=_schedule(notes, virtual),
        zero_stage=zero,
        sequence_parallel=_flag(row, "sequence_parallel", False) and tensor > 1,
        recompute=(row.get("recompute") or "none").lower(),
        precision=_precision(word),
        pure="true" in word,
        optimizer=_optimizer(notes),
        compile=_flag(row, "compile", False),
        async_tensor="async" in notes and "async" in notes.split("no async")[0],
        lora=_lora(notes, word, dimensions),
        engine_name=engine_name,
    ).check()


def _precision(word: str) -> str:
    for found in ("fp8", "float8", "fp16", "bf16"):
        if found in word:
            return "fp8" if found == "float8" else found
    return "fp32" if "32" in word else "bf16"


def _schedule(notes: str, virtual: int) -> str:
    if "zero bubble" in notes or "zero-bubble" in notes:
        return "zero-bubble"
    return "gpipe" if "gpipe" in notes else "interleaved" if virtual > 1 else "1f1b"


def _optimizer(notes: str) -> str:
    if "sgd" in notes:
        return "sgd-momentum" if "momentum" in notes else "sgd"
    return "lion" if "lion" in notes else "adamw"


def _lora(notes: str, word: str, one: Dimensions) -> Lora | None:
    if "lora" not in notes and "adapter" not in notes:
        return None
    bits = 16.0
    if re.search(r"nf4|fp4|4[- ]?bit|qlora", notes + word):
        # An FP32 maximum for every 64 values; double quantisation makes it 8 bit, with one more for 256 of those (Dettmers 2023).
        bits = 4 + (8 / 64 + 32 / 64 / 256 if re.search(r"dq|double", notes + word) else 32 / 64)
    elif re.search(r"int8|8[- ]?bit", notes + word):
        bits = 8.0
    everywhere = bool(re.search(r"(all|every) (linear|layers|matri)|mlp|adapter[ _-]?v2", notes))
    kinds = tuple(one.matrices) if everywhere else ("q_proj", "v_proj")
    rank = float(found[1]) if (found := re.search(r"rank (\d+)", notes)) else 8.0
    if stated := re.search(r"([\d,]{5,}) trainable", notes):
        sides = sum(sum(one.matrices[kind]) for kind in kinds)
        rank = int(stated[1].replace(",", "")) / (one.layers * sides)
    return Lora(rank, (kinds,) * one.layers, base_bits=bits)


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [{key: (value or "").strip() for key, value in row.items() if key} for row in csv.DictReader(file)]


def _number(row: dict[str, str], column: str) -> float | None:
    text = row.get(column, "").replace(",", "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{column}: {text!r} is no number") from None


def _integer(row: dict[str, str], column: str, default: int | None = None) -> int:
    value = _number(row, column)
    if value is None:
        if default is None:
            raise UserError(f"{column}: empty, and nothing stands in for it")
        return default
    return int(value)


def _flag(row: dict[str, str], column: str, default: bool) -> bool:
    text = row.get(column, "").lower()
    return default if not text else text in {"true", "1", "yes"}

"""Training speed and memory of danlu beside a bare PyTorch loop and Hugging Face Trainer.

The same 42 M-parameter Llama shape (stories42M: hidden 512, 8 layers, vocabulary 32,000, embeddings tied), the same tokens,
sequence 256, batch 4, bf16 autocast with FP32 weights, fused AdamW, clipping at 1.0. Each contender runs in a process of its
own, in turn (A B C D A B C D ...), and the medians are compared round by round.

Peak memory is the largest resident size of the contender's process (VmHWM) plus, for danlu's loader process, the most memory
that was its own alone (unique set size, looked up every second): pages that a forked process shares with its parent count once.

    danlu     `danlu train` as it is: loader process, metrics, checks
    engine    danlu's engine alone, stepping over batches that are already in memory
    bare      the loop that people write: danlu's decoder, cross_entropy, clip_grad_norm_, AdamW
    trainer   transformers' LlamaForCausalLM under Trainer

Usage: python benchmarks/train_throughput.py [--rounds 3] [--steps 24] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from danlu.watch.probes import peak_resident_bytes

SEQUENCE, BATCH, WARM = 256, 4, 4
CONTENDERS = ("danlu", "engine", "bare", "trainer")


def recipe(folder: Path, steps: int) -> Any:
    from danlu import recipe as recipes

    return recipes.parse(
        {
            "name": "throughput",
            "model": {"preset": "llama-42m", "vocab_size": 32000},
            "data": {
                "sources": [{"path": "{stdlib}/*.py"}],
                "tokenizer": {"train": {"vocab_size": 8192}},
                "sequence_length": SEQUENCE,
                "document_mask": False,
            },
            "train": {"steps": steps, "global_batch": BATCH, "precision": "bf16", "evaluate_tokens": 1024},
            "checkpoint": {"every": 1_000_000, "keep": 1},
        }
    )


def windows(folder: Path, count: int) -> Any:
    """(count, SEQUENCE + 1) int64 tokens from the prepared stream."""
    import numpy as np

    from danlu.data.prepared import Prepared

    stream = Prepared.open(folder / "throughput" / "data").train
    return np.stack([stream.window(i * SEQUENCE, SEQUENCE + 1) for i in range(count)]).astype("int64")


def run_danlu(folder: Path, steps: int) -> list[float]:
    import shutil

    from danlu import stages
    from danlu.run_folder import RunFolder
    from danlu.watch.store import times

    settings = recipe(folder, steps)
    run = RunFolder.create(settings, folder / "throughput")
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    run.metrics.unlink(missing_ok=True)
    stages.train(settings, run, stages.prepare(settings, run, print), sys.stdout)
    return list(times(run.metrics)[1])


def run_engine(folder: Path, steps: int) -> list[float]:
    from danlu import engines
    from danlu.recipe import resolve_shape

    settings = recipe(folder, steps)
    engine = engines.create(settings, resolve_shape(settings, None))
    engine.initialise()
    return _timed(steps, _batches(folder, steps), lambda batch: engine.train_step(batch, 1e-4))


def _batches(folder: Path, steps: int) -> list[Any]:
    import torch

    tokens = torch.from_numpy(windows(folder, steps * BATCH)).view(steps, 1, BATCH, SEQUENCE + 1)
    return [{"inputs": step[..., :-1].contiguous(), "targets": step[..., 1:].contiguous()} for step in tokens]


def run_bare(folder: Path, steps: int) -> list[float]:
    import torch
    import torch.nn.functional as F

    from danlu.engines.torch.decoder import CausalLM
    from danlu.model.presets import preset

    shape = preset("llama-42m")
    model = CausalLM(shape)
    model.model.set_frequencies(shape)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(batch: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch["inputs"][0])
        loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), batch["targets"][0].view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return _timed(steps, _batches(folder, steps), step)


def run_trainer(folder: Path, steps: int) -> list[float]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.time())

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    tokens = torch.from_numpy(windows(folder, steps * BATCH)[:, :-1].copy())
    data = [{"input_ids": row, "labels": row} for row in tokens]
    clock = Clock()
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-4,
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=True,
        optim="adamw_torch_fused",
        lr_scheduler_type="cosine",
        save_strategy="no",
        report_to=[],
        logging_steps=10,
        disable_tqdm=True,
    )
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data, callbacks=[clock]).train()
    return clock.times


def _timed(steps: int, batches: list[Any], step: Callable[[Any], object]) -> list[float]:
    times = []
    for number in range(steps):
        step(batches[number])
        times.append(time.time())
    return times


def measure(name: str, folder: Path, steps: int) -> dict[str, float]:
    """One contender in a process of its own: seconds a step (median after the warm-up) and its peak resident memory."""
    command = [sys.executable, __file__, "--contender", name, "--folder", str(folder), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def contend(name: str, folder: Path, steps: int) -> None:
    runners = {"danlu": run_danlu, "engine": run_engine, "bare": run_bare, "trainer": run_trainer}
    done, of_children = threading.Event(), [0]
    watcher = threading.Thread(target=_watch_children, args=(done, of_children), daemon=True)
    watcher.start()
    times = runners[name](folder, steps)[WARM - 1 :]
    done.set()
    watcher.join()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    peak = peak_resident_bytes() + max(of_children)
    print(json.dumps({"seconds": statistics.median(gaps), "mean": statistics.mean(gaps), "peak_mib": peak / 2**20}))


def _watch_children(done: threading.Event, sizes: list[int]) -> None:
    """Append the bytes that the descendants of this process have to themselves, every second until done."""
    while not done.wait(1.0):
        total = 0
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                total += child.memory_full_info().uss
        sizes.append(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contend(arguments.contender, arguments.folder, arguments.steps)
        return

    from danlu import engines, stages
    from danlu.model.counts import flops_per_token
    from danlu.recipe import resolve_shape
    from danlu.run_folder import RunFolder

    with tempfile.TemporaryDirectory(prefix="danlu-") as name:
        folder = Path(name)
        settings = recipe(folder, arguments.steps)
        stages.prepare(settings, RunFolder.create(settings, folder / "throughput"), print)
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(arguments.rounds):
            rounds.append({contender: measure(contender, folder, arguments.steps) for contender in CONTENDERS})
            for contender, found in rounds[-1].items():
                speed = BATCH * SEQUENCE / found["seconds"]
                print(
                    f"round {number + 1}  {contender:<8} {speed:8,.0f} tokens/s  peak {found['peak_mib']:7,.0f} MiB", flush=True
                )
    shape = resolve_shape(settings, None)
    peak = engines.create(settings, shape).matmul_peak()
    assert peak is not None  # only fp16 on a CPU has none

    def ratio(other: str, figure: str = "seconds") -> float:
        return statistics.median(each[other][figure] / each["danlu"][figure] for each in rounds)

    speed = BATCH * SEQUENCE / statistics.median(each["danlu"]["seconds"] for each in rounds)
    result = {
        "ratio_to_trainer": ratio("trainer"),
        "ratio_to_bare_loop": ratio("bare"),
        "ratio_to_own_engine": ratio("engine"),
        "peak_memory_ratio_to_bare_loop": 1 / ratio("bare", "peak_mib"),
        "peak_memory_ratio_to_trainer": 1 / ratio("trainer", "peak_mib"),
        "share_of_matmul_peak": speed * flops_per_token(shape, SEQUENCE) / peak,
        "tokens_per_second": speed,
    }
    for label, value in result.items():
        print(f"{label:<32} {value:,.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

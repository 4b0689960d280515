"""8-bit generation beside transformers in float32 on one core: tokens a CPU second, the same prompts, alternating runs.

    python benchmarks/inference.py --model FOLDER [--text FILE] [--json FILE]

FOLDER is a model in the Hugging Face layout. Ratios come from medians of runs that alternate, so that other load on the machine
meets both sides alike. Baselines get their weights in memory of their own, as a file that is mapped is slower to read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from danlu import quantizing, serving
from danlu.compress.plan import Plan
from danlu.serve.engine import Engine
from danlu.serve.executor import BLOCK, Executor
from danlu.serve.load import load
from danlu.serve.model import Model
from danlu.serve.sampling import Sampling

PROMPT, PREFIX, SUFFIX = 64, 1000, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="To measure perplexity on; without it, none is measured.")
    parser.add_argument("--new", type=int, default=32, help="Tokens of an answer.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        small = Path(place) / "small"
        measure = quantizing.Text(options.text, "text", 8192) if options.text else 8192
        made = quantizing.quantize(options.model, small, Plan(), None, measure, False, print)
        figures["size_ratio"] = made["size_ratio"]
        if made["perplexity_increase"] is not None:
            figures["perplexity_increase"] = made["perplexity_increase"]
        opened = serving.open_model(small, print)
        executor = load(opened.shape, opened.weights, opened.scheme, 16384, "cpu")
    theirs = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.clone()
    for batch in (1, 16):
        prompts = drawn(batch, PROMPT, opened.shape.vocab_size)
        sides: dict[str, Callable[[], None]] = {
            "danlu": lambda prompts=prompts: ours(executor, opened.model, prompts, options.new),  # type: ignore[misc]
            "cached": lambda prompts=prompts: baseline(theirs, prompts, options.new, True),  # type: ignore[misc]
        }
        if batch == 1:
            sides["uncached"] = lambda prompts=prompts: baseline(theirs, prompts, options.new, False)  # type: ignore[misc]
        rates = alternate(sides, options.rounds, batch * options.new)
        for name, rate in rates.items():
            figures[f"{name}_b{batch}_tokens_per_cpu_second"] = rate
        figures[f"ratio_fp32_b{batch}"] = rates["danlu"] / rates["cached"]
        if batch == 1:
            figures["ratio_fp32_without_cache_b1"] = rates["danlu"] / rates["uncached"]
    figures["prefix_ttft_ratio"] = prefix_ratio(executor, opened.model, opened.shape.vocab_size)
    weights = sum(parameter.numel() for parameter in theirs.parameters())
    figures["share_of_bandwidth_limit"] = figures["danlu_b1_tokens_per_cpu_second"] * weights / bandwidth()
    for name, value in figures.items():
        print(f"{name:40} {value:.4g}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def drawn(count: int, length: int, vocabulary: int) -> list[list[int]]:
    """Random prompts, the same in every run."""
    return np.random.default_rng(0).integers(0, vocabulary, (count, length)).tolist()  # type: ignore[no-any-return]


def ours(executor: Executor, model: Model, prompts: list[list[int]], new: int) -> None:
    """An engine with an empty cache answers all prompts."""
    engine = Engine(executor)
    for prompt in prompts:
        engine.add(model.sequence(prompt, Sampling(max_tokens=new, temperature=0, ignore_end=True)))
    while engine.busy:
        engine.step()


@torch.inference_mode()
def baseline(model: torch.nn.Module, prompts: list[list[int]], new: int, cached: bool) -> None:
    """transformers answers them."""
    given = torch.tensor(prompts)
    model.generate(  # type: ignore[operator]
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
        use_cache=cached,
        pad_token_id=0,
    )


def alternate(sides: dict[str, Callable[[], None]], rounds: int, tokens: int) -> dict[str, float]:
    """Tokens a CPU second of each side, the median of the rounds; one round before them is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            began = time.process_time()
            run()
            if number:
                seconds[name].append(time.process_time() - began)
    return {name: tokens / statistics.median(each) for name, each in seconds.items()}


def prefix_ratio(executor: Executor, model: Model, vocabulary: int) -> float:
    """How much sooner the first token comes where another request has the same 1,000 tokens before its own 16."""
    ratios = []
    for number in range(5):
        prefix = np.random.default_rng(number).integers(0, vocabulary, PREFIX).tolist()
        engine, seconds = Engine(executor), []
        for suffix in drawn(2, SUFFIX, vocabulary):
            engine.add(model.sequence([*prefix, *suffix], Sampling(max_tokens=1, temperature=0, ignore_end=True)))
            began = time.process_time()
            while engine.busy:
                engine.step()
            seconds.append(time.process_time() - began)
        assert engine.counts["cached_tokens"] >= PREFIX // BLOCK * BLOCK
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def bandwidth() -> float:
    """Bytes a CPU second that one core reads from memory, the best of five."""
    array = np.ones(1 << 27, np.float32)
    best = 0.0
    for _ in range(5):
        began = time.process_time()
        float(np.dot(array, array))
        best = max(best, array.nbytes / (time.process_time() - began))
    return best


if __name__ == "__main__":
    main()

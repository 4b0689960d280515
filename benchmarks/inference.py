"""8-bit generation beside transformers in float32 and other programs, on one core: tokens a CPU second, the same prompts.

    python benchmarks/inference.py --model FOLDER [--text FILE] [--peer PYTHON] [--json FILE]

FOLDER is a model in the Hugging Face layout; PYTHON that of the environment which `make peers-inference` makes. Prompts are
consecutive pieces of this project's own documentation. Ratios come from medians of runs that alternate, so that other load on
the machine meets all sides alike. Baselines get their weights in memory of their own, as a file that is mapped is slower to read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from danlu import quantizing, serving
from danlu.compress.plan import Plan
from danlu.serve.engine import GUESSES, Engine
from danlu.serve.executor import BLOCK, Executor
from danlu.serve.load import load
from danlu.serve.model import Model
from danlu.serve.sampling import Sampling

PROMPT, PREFIX, SUFFIX = 64, 1000, 16
BATCHES = (1, 8, 16)
PEERS = ("ctranslate2", "openvino")
Tokens = list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="To measure perplexity on; without it, none is measured.")
    parser.add_argument("--new", type=int, default=32, help="Tokens of an answer.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=Path, help="Python of an environment with the other programs.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measure = quantizing.Text(options.text, "text", 8192) if options.text else 8192
        made = quantizing.quantize(options.model, place / "small", Plan(), None, measure, False, False, print)
        figures["size_ratio"] = made["size_ratio"]
        if made["perplexity_increase"] is not None:
            figures["perplexity_increase"] = made["perplexity_increase"]
        opened = serving.open_model(place / "small", print)
        executor = load(opened.shape, opened.weights, opened.scheme, 16384, "cpu", threads=1)
        theirs = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        for parameter in theirs.parameters():
            parameter.data = parameter.data.clone()
        names = PEERS if options.peer else ()
        peers = {name: stack.enter_context(peer(options.peer, name, options.model, place / name)) for name in names}
        for batch in BATCHES:
            prompts = texts(opened.model, batch)
            sides = {
                "danlu": lambda new, prompts=prompts: ours(executor, opened.model, prompts, new),
                "danlu_unguessed": lambda new, prompts=prompts: ours(executor, opened.model, prompts, new, guesses=0),
                "cached": lambda new, prompts=prompts: baseline(theirs, prompts, new, True),
            }
            if batch == 1:
                sides["uncached"] = lambda new, prompts=prompts: baseline(theirs, prompts, new, False)
            for name, ask in peers.items():
                sides[name] = lambda new, prompts=prompts, ask=ask: ask(prompts, new)
            figures |= compared(alternate(sides, options.rounds, options.new, batch), batch, list(peers))
    figures["prefix_ttft_ratio"] = prefix_ratio(executor, opened.model, opened.shape.vocab_size)
    weights = sum(parameter.numel() for parameter in theirs.parameters())
    figures["bandwidth_gigabytes_per_second"] = bandwidth() / 1e9
    read = figures["danlu_unguessed_b1_tokens_per_cpu_second"] * weights
    figures["share_of_bandwidth_limit"] = read / (figures["bandwidth_gigabytes_per_second"] * 1e9)
    for name, value in figures.items():
        print(f"{name:44} {value:.4g}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def compared(rates: dict[str, float], batch: int, peers: list[str]) -> dict[str, float]:
    """The rates of one batch, and ours over those of others."""
    figures = {f"{name}_b{batch}_tokens_per_cpu_second": rate for name, rate in rates.items()}
    figures[f"ratio_fp32_b{batch}"] = rates["danlu"] / rates["cached"]
    if "uncached" in rates:
        figures[f"ratio_fp32_without_cache_b{batch}"] = rates["danlu"] / rates["uncached"]
    if peers:
        best = max(rates[name] for name in peers)
        figures[f"ratio_best_peer_b{batch}"] = rates["danlu"] / best
        figures[f"ratio_best_peer_b{batch}_unguessed"] = rates["danlu_unguessed"] / best
    return figures


def texts(model: Model, count: int) -> Tokens:
    """Prompts of a length, from the documentation beside this file, far apart in it."""
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    tokens = model.tokenizer.encode("\n".join(page.read_text(encoding="utf-8") for page in pages))
    step = (len(tokens) - PROMPT) // count
    return [list(tokens[number * step : number * step + PROMPT]) for number in range(count)]


def drawn(count: int, length: int, vocabulary: int) -> Tokens:
    """Random prompts, the same in every run."""
    return np.random.default_rng(0).integers(0, vocabulary, (count, length)).tolist()  # type: ignore[no-any-return]


def ours(executor: Executor, model: Model, prompts: Tokens, new: int, guesses: int = GUESSES) -> float:
    """An engine with an empty cache answers all prompts; CPU seconds."""
    began = time.process_time()
    engine = Engine(executor, guesses=guesses)
    for prompt in prompts:
        engine.add(model.sequence(prompt, Sampling(max_tokens=new, temperature=0, ignore_end=True)))
    while engine.busy:
        engine.step()
    return time.process_time() - began


@torch.inference_mode()
def baseline(model: torch.nn.Module, prompts: Tokens, new: int, cached: bool) -> float:
    """transformers answers them; CPU seconds."""
    began = time.process_time()
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
    return time.process_time() - began


@contextmanager
def peer(python: Path, name: str, model: Path, converted: Path) -> Iterator[Callable[[Tokens, int], float]]:
    """Another program, which answers prompts and says in how many CPU seconds. RuntimeError: it ended, or answered too little."""
    script = Path(__file__).parent / "peers" / "inference.py"
    command = [str(part) for part in (python.absolute(), script, name, model, converted)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    asking, answers = process.stdin, process.stdout

    def line() -> str:
        if not (found := answers.readline()):
            raise RuntimeError(f"{name} ended with exit code {process.wait()}")
        return found

    def ask(prompts: Tokens, new: int) -> float:
        print(json.dumps({"prompts": prompts, "new": new}), file=asking, flush=True)
        found = json.loads(line())
        if [len(answer) for answer in found["answers"]] != [new] * len(prompts):
            raise RuntimeError(f"{name} did not make {new} tokens for each prompt")
        return float(found["seconds"])

    try:
        line()
        yield ask
    finally:
        asking.close()
        process.wait()


def alternate(sides: dict[str, Callable[[int], float]], rounds: int, new: int, batch: int) -> dict[str, float]:
    """Tokens a CPU second of each side, the median of the rounds; one round before them is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            took = run(new)
            if number:
                seconds[name].append(took)
    return {name: batch * new / statistics.median(each) for name, each in seconds.items()}


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

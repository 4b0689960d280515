"""Observed steps of several layouts of four processes, and of one process on the same batch.

    python tests/engines/torch/observed.py '[{"data": 4}]' FOLDER

Writes a line of JSON for one process and one for each layout to FOLDER/told. Forked from one process, which has torch loaded.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from danlu.engines.base import Observed, StepResult
from danlu.engines.torch.engine import TorchEngine
from danlu.recipe import parse, resolve_shape

RANKS, ROWS, LENGTH, VOCABULARY = 4, 8, 16, 64


def observed(parallel: dict[str, Any]) -> tuple[StepResult, Observed]:
    tree = {
        "name": "observed",
        "model": {"layers": 4, "hidden_size": 32, "ffn_size": 64, "heads": 4, "kv_heads": 2, "vocab_size": VOCABULARY},
        "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": LENGTH},
        "train": {"global_batch": ROWS, "device": "cpu"},
        "parallel": parallel,
        "memory": {"micro_batch": 1 if parallel.get("pipeline", 1) > 1 else 2},
    }
    tree["model"] |= {"family": "qwen3", "qk_norm": True, "tied_embeddings": True}  # type: ignore[operator]
    recipe = parse(tree)
    engine = TorchEngine(recipe, resolve_shape(recipe, VOCABULARY))
    engine.initialise()
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (3, ROWS, LENGTH + 1), generator=random)
    for step in range(3):
        rows = tokens[step].chunk(recipe.parallel.data)[engine.data_rank].reshape(-1, recipe.micro_batch, LENGTH + 1)
        batch = {"inputs": rows[..., :-1], "targets": rows[..., 1:]}
        if step < 2:
            engine.train_step(batch, 1e-2)
    return engine.observed_step(batch, 1e-2, histograms=True)


def told(result: StepResult, found: Observed) -> str:
    tensors = {
        f"{kind} {name}": {"sums": sums[:5], "spread": [] if sums.spread is None else sums.spread.tolist()}
        for (kind, name), sums in found.tensors.items()
    }
    return json.dumps({"tensors": tensors, "logits": found.attention_logits, "seconds": dict(result.seconds)})


def member(rank: int, port: int, layouts: list[dict[str, Any]], folder: Path) -> None:
    os.environ["WORLD_SIZE"] = str(RANKS)
    store = TCPStore("127.0.0.1", port, is_master=False)
    with (folder / "told").open("a") as file:
        for number, layout in enumerate(layouts):
            dist.init_process_group("gloo", store=PrefixStore(str(number), store), rank=rank, world_size=RANKS)
            found = observed(layout)
            if rank == 0:
                print(told(*found), file=file, flush=True)
            dist.barrier()
            dist.destroy_process_group()
    os._exit(0)


def main() -> None:
    layouts, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fork = multiprocessing.get_context("fork")
    (folder / "told").write_text(told(*fork.Pool(1).apply(observed, ({},))) + "\n")
    members = [fork.Process(target=member, args=(rank, store.port, layouts, folder)) for rank in range(RANKS)]
    for each in members:
        each.start()
    for each in members:
        each.join()
    sys.exit(max(abs(each.exitcode or 0) for each in members))


if __name__ == "__main__":
    main()

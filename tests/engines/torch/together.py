"""Processes that talk over gloo: what happens in each of them when groups, replicas or identities are not as they should be.

    python tests/engines/torch/together.py

Prints, as JSON, what every rank said of every scene. Forked from one process, which has torch loaded already.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from danlu.engines import meeting
from danlu.engines.meeting import Meeting
from danlu.engines.torch import selftest
from danlu.engines.torch.engine import TorchEngine
from danlu.errors import DanluError
from danlu.recipe import parse, resolve_shape

RANKS = 4
MODEL = {"layers": 4, "hidden_size": 32, "ffn_size": 64, "heads": 4}
Said = str | list[str]


def engine(parallel: dict[str, Any], **model: Any) -> TorchEngine:
    tree = {
        "name": "tiny",
        "model": {**MODEL, **model},
        "data": {"sources": [{"path": "none"}], "sequence_length": 16},
        "train": {"device": "cpu", "global_batch": 8},
        "parallel": parallel,
        "memory": {"micro_batch": 2},
    }
    recipe = parse(tree)
    made = TorchEngine(recipe, resolve_shape(recipe, 96))
    made.initialise()
    return made


def flip(made: TorchEngine, rank: int, ending: str) -> None:
    """The lowest bit of one number on one rank."""
    if dist.get_rank() == rank:
        parameter = next(each for name, each in made.parameters.items() if name.endswith(ending)).detach()
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local.view(torch.int32).view(-1)[3] ^= 1


def groups(parallel: dict[str, Any], **model: Any) -> Said:
    made = engine(parallel, **model)
    made.self_test()
    return sorted(selftest.groups(made.layout, made.pipeline.pair if made.pipeline else None)) + made.replicas_differ()


def flipped(parallel: dict[str, Any], rank: int, ending: str, **model: Any) -> Said:
    made = engine(parallel, **model)
    flip(made, rank, ending)
    return made.replicas_differ()


def wrong_sum() -> Said:
    """The network of one rank loses something of a sum."""
    made = engine({"data": 2, "tensor": 2})
    honest = dist.all_reduce

    def all_reduce(value: torch.Tensor, *rest: Any, **options: Any) -> None:
        honest(value, *rest, **options)
        if dist.get_rank() == 3 and options.get("group") is made.layout.group("tensor"):
            value[7] += 1

    with patch.object(dist, "all_reduce", all_reduce):
        selftest.run(made.layout, torch.device("cpu"), seconds=1.0)
    return "all is well"


def absent() -> Said:
    """A rank that does not come to one of the operations."""
    made = engine({"data": 2, "tensor": 2})
    if dist.get_rank() == 2:
        return "elsewhere"
    selftest.run(made.layout, torch.device("cpu"), seconds=1.0)
    return "all is well"


def roll_call(**odd: Any) -> Callable[[int, Any, Path], Said]:
    def call(rank: int, store: Any, folder: Path) -> Said:
        """Rank 2 holds something else; ``file`` is where it looks for the first rank's number."""
        identity = {"recipe": {"train": {"seed": 1, "steps": 5}}, "danlu": "1, code abc", "torch": "2", "data": "feed"}
        file = folder / "roll-call"
        if rank == 2:
            identity |= {name: value for name, value in odd.items() if name in identity}
            file = folder / odd.get("file", "roll-call")
        with (
            patch.object(meeting, "SHARED_SECONDS", 0.5),
            patch.object(meeting, "COME_SECONDS", 1 if odd.get("missing") else 30),
        ):
            if rank == 2 and odd.get("missing"):
                return "elsewhere"
            Meeting(rank, RANKS, store).roll_call(identity, file)
        return "all hold the same"

    return call


TIED = {"tied_embeddings": True}
SCENES: dict[str, Any] = {
    "data and tensor": lambda: groups({"data": 2, "tensor": 2}),
    "zero 3": lambda: groups({"data": 4, "zero_stage": 3}),
    "data and pipeline, tied": lambda: groups({"data": 2, "pipeline": 2}, **TIED),
    "sequence parallel and pipeline": lambda: groups({"tensor": 2, "pipeline": 2, "sequence_parallel": True}),
    "a bit of a replica": lambda: flipped({"data": 4}, 1, "layers.2.mlp.up_proj.weight"),
    "a bit of a shard's replica": lambda: flipped({"data": 2, "tensor": 2}, 3, "layers.0.self_attn.q_proj.weight"),
    "a bit of a norm under tensor parallelism": lambda: flipped({"tensor": 4}, 2, "model.norm.weight"),
    "a bit of a norm under sequence parallelism": lambda: flipped(
        {"tensor": 4, "sequence_parallel": True}, 0, "layers.1.input_layernorm.weight"
    ),
    "a bit of the tied embeddings": lambda: flipped({"tensor": 2, "pipeline": 2}, 3, "lm_head.weight", **TIED),
    "a bit that is nobody else's": lambda: flipped({"data": 4, "zero_stage": 3}, 1, "layers.2.mlp.up_proj.weight"),
    "a wrong sum": wrong_sum,
    "a rank stays away": absent,
}
MEETINGS = {
    "all alike": roll_call(),
    "another recipe": roll_call(recipe={"train": {"seed": 2, "steps": 5}}),
    "another code": roll_call(danlu="1, code xyz"),
    "another torch": roll_call(torch="1"),
    "other data": roll_call(data="f00d"),
    "another folder": roll_call(file="elsewhere"),
    "one is missing": roll_call(missing=True),
}


def scene(name: str, rank: int, store: Any, folder: Path) -> Said:
    try:
        if name in MEETINGS:
            return MEETINGS[name](rank, store, folder)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        said: Said = SCENES[name]()
        return said
    except DanluError as error:
        return str(error)


def member(rank: int, port: int, folder: Path) -> None:
    os.environ["WORLD_SIZE"] = str(RANKS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch's warnings, from every process
    store = TCPStore("127.0.0.1", port, is_master=False)
    said = {}
    for name in [*MEETINGS, *SCENES]:
        said[name] = scene(name, rank, PrefixStore(name, store), folder)
        store.set(f"done {name} {rank}", "")
        store.wait([f"done {name} {each}" for each in range(RANKS)])
        if dist.is_initialized() and name != "a rank stays away":  # the last one: some still wait in it
            dist.destroy_process_group()
    (folder / f"said-{rank}").write_text(json.dumps(said))
    os._exit(0)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        fork = multiprocessing.get_context("fork")
        members = [fork.Process(target=member, args=(rank, store.port, Path(place))) for rank in range(RANKS)]
        for each in members:
            each.start()
        for each in members:
            each.join()
        json.dump([json.loads((Path(place) / f"said-{rank}").read_text()) for rank in range(RANKS)], sys.stdout)


if __name__ == "__main__":
    main()

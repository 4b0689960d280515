"""Who this process is when somebody else has started it: torchrun's variables, those of paddle's launcher, or of SLURM."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from danlu.errors import UserError
from danlu.recipe import Recipe

PORTS = range(20_000, 30_000)
"""Where the ranks of a SLURM job meet, by its number: below the ports that Linux hands out by itself."""


class Place(NamedTuple):
    """This process among those of a layout that were started together."""

    rank: int
    processes: int
    starter: str


@dataclass(frozen=True)
class Nodes:
    """Machines of a run that danlu starts: how many, which one this is, and where they meet (host:port)."""

    count: int = 1
    rank: int = 0
    rendezvous: str = "127.0.0.1:0"


def place() -> Place | None:
    """This process's place, with torchrun's variables set if another has started it; None: it stands alone.

    A SLURM job step counts when it has several tasks: the body of a batch script is one process, whatever the job asked for.
    UserError: variables that contradict each other.
    """
    if "WORLD_SIZE" in os.environ:
        world = _number("WORLD_SIZE")
        return Place(_rank("RANK", world), world, "torchrun") if world > 1 else None
    if _number("PADDLE_TRAINERS_NUM") > 1:
        return _by_paddle(_number("PADDLE_TRAINERS_NUM"))
    tasks = _number("SLURM_STEP_NUM_TASKS") or _number("SLURM_NTASKS")
    if tasks <= 1 or not ({"SLURM_STEP_ID", "SLURM_STEP_NODELIST"} & os.environ.keys()):
        return None
    rank = _rank("SLURM_PROCID", tasks)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(tasks), "LOCAL_RANK": str(_number("SLURM_LOCALID"))}
    hosts = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    os.environ.setdefault("MASTER_ADDR", first_host(hosts) or "127.0.0.1")
    port = PORTS[(_number("SLURM_JOB_ID") * 7 + _number("SLURM_STEP_ID")) % len(PORTS)]
    os.environ.setdefault("MASTER_PORT", str(port))
    here = -(-tasks // max(1, _number("SLURM_NNODES")))
    cores = _number("SLURM_CPUS_PER_TASK") or (os.cpu_count() or 1) // here
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
    return Place(rank, tasks, "srun")


def _by_paddle(world: int) -> Place:
    """As ``python -m paddle.distributed.launch`` tells it."""
    rank = _rank("PADDLE_TRAINER_ID", world)
    first = os.environ.get("PADDLE_MASTER") or os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")[0]
    host, _, port = first.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"the environment variables PADDLE_MASTER and PADDLE_TRAINER_ENDPOINTS name no host:port ({first!r})")
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": host, "MASTER_PORT": port}
    os.environ["LOCAL_RANK"] = str(_number("PADDLE_LOCAL_RANK")) if "PADDLE_LOCAL_RANK" in os.environ else "0"
    return Place(rank, world, "paddle.distributed.launch")


def forget() -> None:
    """Forget what somebody else's launcher said: this process starts the ranks of its machine by itself."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    for name in [name for name in os.environ if name.startswith(("SLURM_STEP", "PADDLE_TRAINER"))]:
        del os.environ[name]


def check(recipe: Recipe, where: Place) -> None:
    """UserError: the number of processes that were started is not the layout's."""
    wanted = recipe.parallel.processes
    if where.processes != wanted:
        raise UserError(
            f"parallel: data x tensor x pipeline = {wanted}, but {where.processes} processes were started by {where.starter}; "
            "let `danlu train` start them, or start that many"
        )


def nodes(count: int | None, rank: int | None, rendezvous: str | None) -> Nodes:
    """The machines that the command line names. UserError: one of the three is missing, or contradicts another."""
    if count is None and rank is None and rendezvous is None:
        return Nodes()
    if count is None:
        raise UserError("--node-rank and --rendezvous belong to --nodes; give the number of machines too")
    if count == 1 and not rank:
        return Nodes()
    if rank is None:
        raise UserError(f"--nodes {count}: which of them is this? give --node-rank 0 to {count - 1}, another one on each")
    if rank >= count:
        raise UserError(f"--node-rank {rank}: of {count} machines the last one has {count - 1}")
    host, _, port = (rendezvous or "").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        given = "is missing" if rendezvous is None else f"{rendezvous!r} is no host:port"
        raise UserError(f"--rendezvous {given}; give the first machine and a free port there, as node0:29500, on all of them")
    return Nodes(count, rank, f"{host}:{port}")


def first_host(nodelist: str) -> str:
    """The first of SLURM's host list, such as ``gpu[03-05,9],login`` -> ``gpu03``; names may have several brackets."""
    depth, end = 0, len(nodelist)
    for at, character in enumerate(nodelist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            end = at
            break
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodelist[:end])


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not text.isdigit():
        raise UserError(f"the environment variable {name} is {text!r}, which is no number; who starts danlu sets it")
    return int(text)


def _rank(name: str, processes: int) -> int:
    if name not in os.environ:
        raise UserError(f"{processes} processes were started, but {name} is not set, which says which one this is")
    rank = _number(name)
    if rank >= processes:
        raise UserError(f"the environment variable {name} is {rank}, but there are {processes} processes")
    return rank

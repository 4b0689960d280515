"""Where this process stands in the layout: its rank along each dimension, and the groups that it talks to.

Dimensions from the outside in: pipeline, replicate, shard, tensor. Data-parallel ranks are replicas (ZeRO 0) or shards (ZeRO 1
to 3), so that one of the two middle dimensions has size 1. Tensor ranks are neighbours, which puts them on one machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from danlu.errors import UserError
from danlu.recipe import Recipe

PATIENCE = 11
"""How much longer than watch.hang_seconds a collective waits: the watchdog, which can say who is at fault, comes first."""


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and this process's place. Without a mesh, one process does all."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    mesh: DeviceMesh | None = None

    @classmethod
    def start(cls, recipe: Recipe, device: torch.device) -> Self:
        """Join the process group that the launcher's environment describes. UserError: another number of processes."""
        parallel = recipe.parallel
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world != parallel.processes:
            raise UserError(
                f"parallel: data x tensor x pipeline = {parallel.processes}, but {world} processes were started; "
                "let `danlu train` start them, or start that many"
            )
        if world == 1:
            return cls()
        if not dist.is_initialized():
            timeout = timedelta(seconds=PATIENCE * recipe.watch.hang_seconds)
            # Shards in host memory are gathered and measured by gloo also beside a GPU.
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timeout)
        return cls.over(recipe, device)

    @classmethod
    def over(cls, recipe: Recipe, device: torch.device) -> Self:
        """The layout of the processes of the group that this one is in."""
        parallel = recipe.parallel
        replicate, shard = (parallel.data, 1) if parallel.zero_stage == 0 else (1, parallel.data)
        sizes = (parallel.pipeline, replicate, shard, parallel.tensor)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("pipeline", "replicate", "shard", "tensor"))
        return cls(parallel.data, parallel.tensor, parallel.pipeline, mesh)

    @property
    def rank(self) -> int:
        """Of all processes; 0 also without any other."""
        return dist.get_rank() if self.mesh is not None else 0

    @property
    def pipeline_rank(self) -> int:
        """Which pipeline stage this process begins with."""
        return self.place("pipeline")

    @property
    def data_rank(self) -> int:
        """Which slice of the global batch is this process's."""
        return self.place("replicate") + self.place("shard")

    @property
    def tensor_rank(self) -> int:
        """Which slice of the heads, the MLP and the vocabulary is this process's."""
        return self.place("tensor")

    def submesh(self, *names: str) -> DeviceMesh:
        """Some dimensions of the mesh."""
        assert self.mesh is not None
        return self.mesh[names if len(names) > 1 else names[0]]

    def group(self, name: str) -> dist.ProcessGroup:
        """The process group along one dimension; "data" is whichever of replicate and shard is used."""
        if name == "data":
            name = "replicate" if self.submesh("replicate").size() > 1 else "shard"
        return self.submesh(name).get_group()

    def sum(self, value: Tensor, *names: str) -> Tensor:
        """Sum over the ranks of the named dimensions, in place; every rank gets it."""
        if self.mesh is not None:
            for name in names:
                if getattr(self, name) > 1:
                    dist.all_reduce(value, group=self.group(name))
        return value

    def reduce(self, value: Tensor, largest: bool = False) -> None:
        """Sum, or the largest, over all processes, in place; every one gets it."""
        if self.mesh is not None:
            dist.all_reduce(value, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.mesh is not None:
            dist.barrier()

    def close(self) -> None:
        """Leave all groups, once every process has come to that."""
        if self.mesh is not None:
            dist.barrier()
            dist.destroy_process_group()

    def gather(self, value: Any) -> list[Any]:
        """Every process's small value, by rank."""
        if self.mesh is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    def tell(self, number: int) -> int:
        """The number that the last pipeline stage's first rank has, on every process."""
        if self.mesh is None:
            return number
        value = torch.tensor(number, device=self.mesh.device_type)
        dist.broadcast(value, src=int(self.mesh.mesh[-1].flatten()[0]))
        return int(value)

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.mesh is None:
            return flag
        value = torch.tensor(float(flag), device=self.mesh.device_type)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return value.item() > 0

    def size(self, name: str) -> int:
        """Of a dimension of the mesh."""
        return self.submesh(name).size() if self.mesh is not None else 1

    def place(self, name: str) -> int:
        """This process's rank along a dimension of the mesh."""
        return self.mesh.get_local_rank(name) if self.mesh is not None else 0

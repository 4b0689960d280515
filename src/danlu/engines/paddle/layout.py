"""Where this process stands in the layout: its rank along each dimension, and the groups that it talks to.

The groups are Fleet's. Dimensions from the outside in: pipeline, data or sharding, tensor. Data-parallel ranks are replicas
(ZeRO 0) or shards (ZeRO 1 to 3). Tensor ranks are neighbours, which puts them on one machine.
"""

from __future__ import annotations

import io
import os
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any, Self

import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed import fleet

from danlu.engines.paddle import rehearsal
from danlu.errors import UserError
from danlu.recipe import Recipe

_ORDER = ["pp", "dp", "sharding", "sep", "mp"]


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and this process's place. Without Fleet's groups, one process does all."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero_stage: int = 0
    sequence_parallel: bool = False
    """Whether tensor ranks split the sequence too."""
    hcg: Any = None
    auto: bool = False
    """Whether paddle's auto-parallel spreads the model's tensors; the groups are Fleet's all the same."""

    @classmethod
    def start(cls, recipe: Recipe) -> Self:
        """Join the processes that the launcher's environment describes. UserError: another number of processes."""
        parallel = recipe.parallel
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world != parallel.processes:
            raise UserError(
                f"parallel: data x tensor x pipeline = {parallel.processes}, but {world} processes were started; "
                "let `danlu train` start them, or start that many"
            )
        if world == 1:
            return cls()
        cpu = paddle.get_device() == "cpu"
        tell_paddle()
        if cpu:
            os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
            rehearsal.begin()
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # of flags, and of groups that this rank is not in
            warnings.simplefilter("ignore")
            fleet.init(is_collective=True, strategy=_strategy(recipe, cpu), log_level="ERROR")
        hcg = fleet.get_hybrid_communicate_group()
        auto = parallel.api == "auto_parallel"
        degrees = (parallel.data, parallel.tensor, parallel.pipeline)
        return cls(*degrees, parallel.zero_stage, parallel.sequence_parallel, hcg, auto)

    @property
    def rank(self) -> int:
        """Of all processes; 0 also without any other."""
        return dist.get_rank() if self.hcg is not None else 0

    @property
    def pipeline_rank(self) -> int:
        """Which pipeline stage this process begins with."""
        return self.hcg.get_stage_id() if self.hcg is not None else 0

    @property
    def data_rank(self) -> int:
        """Which slice of the global batch is this process's."""
        return self.group("data").rank if self.data > 1 else 0

    @property
    def tensor_rank(self) -> int:
        """Which slice of the heads, the MLP and the vocabulary is this process's."""
        return self.hcg.get_model_parallel_rank() if self.hcg is not None else 0

    def group(self, name: str) -> Any:
        """The process group along one dimension; of "data", whichever of Fleet's dp and sharding is used."""
        if name == "tensor":
            return self.hcg.get_model_parallel_group()
        if name == "pipeline":
            return self.hcg.get_pipe_parallel_group()
        return self.hcg.get_sharding_parallel_group() if self.zero_stage else self.hcg.get_data_parallel_group()

    def sum(self, value: Tensor, *names: str) -> Tensor:
        """Sum over the ranks of the named dimensions, in place; every rank gets it."""
        for name in names:
            if getattr(self, name) > 1:
                dist.all_reduce(value, group=self.group(name))
        return value

    def sum_all(self, value: Tensor) -> Tensor:
        """Sum over all processes, in place; every one gets it."""
        if self.hcg is not None:
            dist.all_reduce(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        """Every process's small value, by rank."""
        if self.hcg is None:
            return [value]
        values: list[Any] = []
        dist.all_gather_object(values, value)
        return values

    def tell(self, number: int) -> int:
        """The number that the last pipeline stage's first rank has, on every process."""
        if self.hcg is None:
            return number
        value = paddle.to_tensor([number], dtype="int64")
        dist.broadcast(value, src=dist.get_world_size() * (self.pipeline - 1) // self.pipeline)
        return int(value.item())

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.hcg is None:
            return flag
        value = paddle.to_tensor([float(flag)])
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return bool(value.item() > 0)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.hcg is not None:
            dist.barrier()

    def close(self) -> None:
        """Leave all groups, once every process has come to that."""
        if self.hcg is not None:
            dist.barrier()
            dist.destroy_process_group()


def _strategy(recipe: Recipe, cpu: bool) -> Any:
    """Fleet's own description of the layout."""
    parallel = recipe.parallel
    strategy = fleet.DistributedStrategy()
    replicas, shards = (parallel.data, 1) if parallel.zero_stage == 0 else (1, parallel.data)
    strategy.hybrid_configs = {
        "order": _ORDER,
        "dp_degree": replicas,
        "sharding_degree": shards,
        "mp_degree": parallel.tensor,
        "pp_degree": parallel.pipeline,
        # Gradients are not divided by the number of micro-batches, since each one carries its own weight.
        # Neighbours send to each other one message at a time; the parts of a message are not spread over tensor ranks.
        "pp_configs": {"delay_scale_loss": True, "use_batch_p2p_comm": not cpu},
    }
    strategy.pipeline_configs = {
        "accumulate_steps": recipe.accumulation,
        "micro_batch_size": recipe.micro_batch,
        "enable_partial_send_recv": not cpu,
    }
    return strategy


def tell_paddle() -> None:
    """What paddle.distributed.launch sets, from what every launcher of danlu sets."""
    rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"])
    # Ranks are told by number and meet at the master's store; paddle only wants these to differ.
    names = [f"{host}:{port + 1 + other}" for other in range(world)]
    os.environ |= {"PADDLE_TRAINER_ID": rank, "PADDLE_TRAINERS_NUM": str(world), "PADDLE_MASTER": f"{host}:{port}"}
    os.environ |= {"PADDLE_TRAINER_ENDPOINTS": ",".join(names), "PADDLE_CURRENT_ENDPOINT": names[int(rank)]}
    os.environ["FLAGS_selected_gpus"] = os.environ.get("LOCAL_RANK", "0")  # noqa: SIM112 - so it is called

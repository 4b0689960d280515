"""Peak bytes of a training step by what they are for, without a GPU: every storage is seen at the operator that makes it.

What is counted are the bytes of tensors on the engine's device. Scratch space inside an operator, buffers inside a communication
library and an allocator's reserve are not tensors: on a GPU its own counter tells, on a CPU the resident memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from danlu.engines.base import MEMORY_KINDS
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.objective import Objective
from danlu.engines.torch.offload import is_mapped
from danlu.engines.torch.optimizer import Optimizer
from danlu.engines.torch.pieces import local
from danlu.engines.torch.shard import split

_PARAMETERS, _GATHERED, _CASTS, _GRADIENTS, _OPTIMIZER, _ACTIVATIONS, _TEMPORARIES = MEMORY_KINDS
_HALF = (torch.bfloat16, torch.float16)
_PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)


class Metered(Protocol):
    """What the meter knows of an engine."""

    device: str
    parameters: dict[str, torch.nn.Parameter]
    stages: list[CausalLM]
    optimizer: Optimizer

    @property
    def objective(self) -> Objective: ...


@dataclass(eq=False)
class _Record:
    """One storage from its allocation to its end, in events of the meter."""

    bytes: int
    born: int
    forward: bool
    kind: str = _TEMPORARIES
    died: int | None = None


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages of an engine's steps while it is active."""

    def __init__(self, engine: Metered) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.engine = engine
        self.device = torch.device(engine.device)
        self.records: list[_Record] = []
        self.alive: dict[int, tuple[_Record, Any]] = {}
        """By the address of the storage; the weak reference tells its end."""
        self.events, self.backward = 0, False
        self.turns: list[int] = []
        """Events at which a forward pass, a backward pass or the update has begun."""

    def __enter__(self) -> Meter:
        self.note([*self.engine.parameters.values(), *self.engine.objective.frozen], _PARAMETERS)
        self.note(_gathered(self.engine), _GATHERED)
        self.note(_moments(self.engine), _OPTIMIZER)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        # What the first step of all has made.
        self.note(_gathered(self.engine), _GATHERED)
        self.note(_moments(self.engine), _OPTIMIZER)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # a DTensor first becomes its local tensors, whose operators come here
        self._enter(torch._C._current_graph_task_id() != -1)
        for tensor in _plain(args, kwargs):
            self._seen(tensor)  # made before the meter began: the batch, buffers of the pipeline
        result = func(*args, **(kwargs or {}))
        for tensor in _plain(result):
            self._seen(tensor)
        if func is torch.ops.aten._to_copy.default and result.dtype in _HALF:
            source, made = self._seen(args[0]), self._seen(result)
            if source is not None and made is not None and source.kind in (_PARAMETERS, _GATHERED):
                made.kind = _CASTS
        return result

    def note(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Say what tensors are for."""
        for tensor in tensors:
            # Where FSDP has let go of a storage, detaching the fake tensor would fill it again.
            record = self._seen(local(tensor.detach()) if isinstance(tensor, DTensor) else tensor)
            if record is not None:
                record.kind = kind

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size: sharding frees and fills the whole copies of parameters that way."""
        record, reference = self.alive.get(storage._cdata, (None, None))
        if record is None or record.bytes == storage.nbytes():
            return
        self._end(record)
        self._begin(storage, record.kind, reference)

    def held(self) -> Any:
        """Bytes alive after every event, (kinds, events)."""
        deltas = np.zeros((len(MEMORY_KINDS), self.events + 1), dtype=np.int64)
        for record in self.records:
            row = MEMORY_KINDS.index(record.kind)
            deltas[row, record.born] += record.bytes
            if record.died is not None:
                deltas[row, record.died] -= record.bytes
        return deltas.cumsum(axis=1)

    def result(self) -> dict[str, int]:
        """See ``Engine.metered_step``."""
        held = self.held()
        moment = int(held.sum(axis=0).argmax())
        found = {"peak": int(held[:, moment].sum())}
        found |= {kind: int(held[row].max()) for row, kind in enumerate(MEMORY_KINDS)}
        found |= {f"peak_{kind}": int(held[row, moment]) for row, kind in enumerate(MEMORY_KINDS)}
        return found | {"offloaded": _outside(self.engine)}

    def _enter(self, backward: bool) -> None:
        """What the forward pass has left when a backward pass begins, it has left for it."""
        if backward and not self.backward:
            for record, _ in self.alive.values():
                if record.forward and record.kind == _TEMPORARIES:
                    record.kind = _ACTIVATIONS
        if backward != self.backward:
            self.turns.append(self.events)
        self.backward = backward

    def _seen(self, tensor: Tensor) -> _Record | None:
        """The record of a tensor's storage, new if it is; None on another device or in a mapped file."""
        if tensor.device != self.device:
            return None
        storage = tensor.untyped_storage()
        if storage._cdata not in self.alive:
            if is_mapped(storage):
                return None
            self._begin(storage, _TEMPORARIES)
        return self.alive[storage._cdata][0]

    def _begin(self, storage: torch.UntypedStorage, kind: str, reference: Any = None) -> None:
        self.events += 1
        record = _Record(storage.nbytes(), self.events, not self.backward, kind)
        self.records.append(record)
        address = storage._cdata
        if reference is None:
            reference = weakref.ref(storage, lambda _: self._end(self.alive.pop(address)[0]))
        self.alive[address] = (record, reference)

    def _end(self, record: _Record) -> None:
        self.events += 1
        record.died = self.events


@contextmanager
def metered(engine: Metered) -> Iterator[Meter]:
    """Meter the steps inside; ``result`` of what is given tells."""
    meter = Meter(engine)
    resize = torch.UntypedStorage.resize_

    def resize_and_tell(storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        meter.resized(storage)

    def accumulated(parameter: Tensor) -> None:
        meter.note([parameter.grad] if parameter.grad is not None else [], _GRADIENTS)

    with_gradient: Any = [*engine.parameters.values(), *_whole(engine)]
    hooks = [each.register_post_accumulate_grad_hook(accumulated) for each in with_gradient if each.requires_grad]
    torch.UntypedStorage.resize_ = resize_and_tell  # type: ignore[method-assign, assignment]
    try:
        with meter:
            yield meter
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()


def _plain(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(trees) if type(leaf) in _PLAIN]


def _moments(engine: Metered) -> list[Tensor]:
    states = engine.optimizer.adamw.state.values()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def _gathered(engine: Metered) -> list[Tensor]:
    """Whole copies of split parameters; where a replica is used in place it is the parameter itself."""
    own = {local(parameter).untyped_storage()._cdata for parameter in engine.parameters.values()}
    outputs = [output for stage in engine.stages for parameter in split(stage) for output in parameter.all_gather_outputs]
    return [output for output in outputs if output.untyped_storage()._cdata not in own]


def _whole(engine: Metered) -> list[Tensor]:
    accounts = [parameter for stage in engine.stages for parameter in split(stage)]
    return [parameter._unsharded_param for parameter in accounts if hasattr(parameter, "_unsharded_param")]


def _outside(engine: Metered) -> int:
    """Bytes of parameters and states in a mapped file or on another device."""
    kept = map(local, [*engine.parameters.values(), *_moments(engine)])
    away = [tensor for tensor in kept if tensor.device != torch.device(engine.device) or is_mapped(tensor.untyped_storage())]
    return sum(tensor.nbytes for tensor in away)

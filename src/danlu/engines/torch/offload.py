"""Optimizer states and parameters outside the memory that computes (Ren et al. 2021; Rajbhandari et al. 2021).

Beside a GPU, in host memory; on any device, in an unnamed file that is mapped into memory, so that what is not in use takes no
resident memory. The update runs on the CPU, one layer's group of parameters at a time, with the next one on its way.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.pieces import local
from danlu.errors import RunStopped
from danlu.files import why
from danlu.recipe import Recipe

MOMENTS = ("exp_avg", "exp_avg_sq")


class Shelf:
    """FP32 areas in host memory, or in a mapped file of a folder."""

    def __init__(self, elements: Sequence[int], folder: Path | None) -> None:
        """RunStopped: the disk has no room. The file has no name: it is gone when the process is, however that ends."""
        self.ends = list(itertools.accumulate(elements))
        total = max(1, self.ends[-1] if self.ends else 0)
        self.mapping = _mapped(folder, 4 * total) if folder is not None else None
        whole = torch.zeros(total) if self.mapping is None else torch.frombuffer(self.mapping, dtype=torch.float32)
        self.storage = whole.untyped_storage()
        _shelves.add(self)
        self.areas = [whole[end - size : end] for size, end in zip(elements, self.ends, strict=True)]

    def expect(self, number: int) -> None:
        """Begin to read an area from the disk."""
        self._advise(mmap.MADV_WILLNEED, number)

    def let_go(self, number: int) -> None:
        """Take an area out of resident memory. What was written to it is the kernel's to bring to the disk."""
        self._advise(mmap.MADV_DONTNEED, number)

    def _advise(self, advice: int, number: int) -> None:
        if self.mapping is None:
            return
        start = 4 * (self.ends[number] - self.areas[number].numel()) // mmap.PAGESIZE * mmap.PAGESIZE
        if length := 4 * self.ends[number] - start:
            self.mapping.madvise(advice, start, length)


_shelves: weakref.WeakSet[Shelf] = weakref.WeakSet()


def is_mapped(storage: torch.UntypedStorage) -> bool:
    """Whether it is a file, which takes memory only where it is in use."""
    return any(shelf.mapping is not None and shelf.storage._cdata == storage._cdata for shelf in _shelves)


def _mapped(folder: Path, size: int) -> mmap.mmap:
    """Zeros in a file without a name. Its blocks are reserved at once, so that a disk that fills up later does no harm."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise RunStopped(
            f"memory: {size:,} bytes could not be offloaded to {folder}: {why(error)}; checkpoints are untouched: make room, "
            "or name another disk in memory.offload_folder, and run the same command to go on"
        ) from error


class OffloadedAdamW(torch.optim.AdamW):
    """AdamW whose moments are on a shelf, an area for each group of parameters."""

    def __init__(self, groups: Sequence[dict[str, Any]], folder: Path | None, **options: Any) -> None:
        super().__init__(groups, **options)
        self.folder = folder
        self.shelf: Shelf | None = None
        self.slots: dict[Tensor, dict[str, Tensor]] = {}
        self.transfer: Transfer | None = None

    def slot(self, parameter: Tensor, key: str) -> Tensor:
        """The place of one moment of a parameter, split as it is."""
        if self.shelf is None:
            self._make()
        return self.slots[parameter][key]

    def _make(self) -> None:
        """Only a training needs it, so it is made when the first moment is."""
        groups = [group["params"] for group in self.param_groups]
        sizes = [sum(local(parameter).numel() for parameter in group) for group in groups]
        device = local(groups[0][0]).device
        away = on_accelerator(device)
        self.shelf = Shelf([len(MOMENTS) * size for size in sizes], self.folder)
        for group, area in zip(groups, self.shelf.areas, strict=True):
            pieces = iter(area.split([local(parameter).numel() for parameter in group for _ in MOMENTS]))  # type: ignore[no-untyped-call]
            for parameter in group:
                self.slots[parameter] = {key: _like(parameter, next(pieces)) for key in MOMENTS}
        if away:
            self.transfer = Transfer(max(sizes), device)

    def _moments(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for key in MOMENTS:
                state[key] = self.slot(parameter, key).zero_()
        return local(state[MOMENTS[0]]), local(state[MOMENTS[1]]), state["step"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One group after the other; each is the same fused update as without offload."""
        assert closure is None
        if self.shelf is None:
            self._make()
        assert self.shelf is not None
        groups = [[each for each in group["params"] if each.grad is not None] for group in self.param_groups]
        if self.transfer is not None:
            self.transfer.begin()
            self.transfer.fetch(0, groups[0])
        for number, (settings, group) in enumerate(zip(self.param_groups, groups, strict=True)):
            if number + 1 < len(groups):
                self.shelf.expect(number + 1)
                if self.transfer is not None:
                    self.transfer.fetch(number + 1, groups[number + 1])
            if group:
                self._update(settings, group, number)
            self.shelf.let_go(number)
        if self.transfer is not None:
            self.transfer.end()

    def _update(self, settings: dict[str, Any], group: list[Tensor], number: int) -> None:
        weights = [local(each) for each in group]
        if self.transfer is None:
            gradients = [own_gradient(each) for each in group]
        else:
            weights, gradients = self.transfer.arrived(number, weights)
        first, second, steps = (list(each) for each in zip(*map(self._moments, group), strict=True))
        beta1, beta2 = settings["betas"]
        adamw(
            weights,
            gradients,
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=settings["lr"],
            weight_decay=settings["weight_decay"],
            eps=settings["eps"],
            maximize=False,
        )
        if self.transfer is not None:
            self.transfer.send(weights, [local(each) for each in group])


class Transfer:
    """Weights and gradients from a GPU to two buffers in host memory, a group ahead of its update, and weights back."""

    def __init__(self, elements: int, device: torch.device) -> None:
        self.device: Any = torch.get_device_module(device)
        self.buffers = [torch.empty(2, elements, pin_memory=device.type == "cuda") for _ in range(2)]
        self.down, self.up = self.device.Stream(), self.device.Stream()
        self.events = [self.device.Event(), self.device.Event()]

    def begin(self) -> None:
        """The gradients are there once the present work is done."""
        self.down.wait_stream(self.device.current_stream())

    def fetch(self, number: int, group: list[Tensor]) -> None:
        """Begin to copy a group down, into the buffer of the group before the last."""
        self.down.wait_stream(self.up)  # the weights in it may be on their way up
        with self.device.stream(self.down):
            for row, tensors in enumerate(([local(each) for each in group], [own_gradient(each) for each in group])):
                for place, tensor in zip(self._places(number, group, row), tensors, strict=True):
                    place.copy_(tensor, non_blocking=True)
            self.events[number % 2].record(self.down)

    def arrived(self, number: int, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Wait for a group; its weights and gradients in host memory."""
        self.events[number % 2].synchronize()
        return self._places(number, weights, 0), self._places(number, weights, 1)

    def send(self, updated: list[Tensor], weights: list[Tensor]) -> None:
        """Begin to copy updated weights up."""
        with self.device.stream(self.up):
            for source, target in zip(updated, weights, strict=True):
                target.copy_(source, non_blocking=True)

    def end(self) -> None:
        """What comes next on the GPU waits for the weights."""
        self.device.current_stream().wait_stream(self.up)

    def _places(self, number: int, like: list[Tensor], row: int) -> list[Tensor]:
        sizes = [local(each).numel() for each in like]
        pieces = self.buffers[number % 2][row, : sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
        return [piece.view(local(each).shape) for piece, each in zip(pieces, like, strict=True)]


def parameters_place(recipe: Recipe, device: torch.device) -> str:
    """memory.offload_parameters where it has an effect; one process has no shards, and a CPU computes in host memory."""
    place = recipe.memory.offload_parameters
    no_effect = recipe.parallel.zero_stage < 3 or (place == "host" and not on_accelerator(device))
    return "none" if no_effect else place


def materialise(stage: CausalLM, device: torch.device, folder: Path | None) -> None:
    """Give the shards of ZeRO 3 storage in host memory, or in a mapped file that each layer lets go of as it ends.

    A shard that is padded, since its first dimension does not divide by the data ranks, stays in memory.
    """
    parameters = [parameter for _, parameter in stage.named_parameters(remove_duplicate=False)]
    shelf = Shelf([sum(local(parameter).numel() for parameter in parameters)], folder)
    free = shelf.areas[0]

    def place(tensor: Tensor) -> Tensor:
        nonlocal free
        if not isinstance(tensor, DTensor):
            return torch.empty_like(tensor, device=device)
        piece, free = free[: local(tensor).numel()], free[local(tensor).numel() :]
        return _like(tensor, piece)

    stage._apply(place)  # type: ignore[no-untyped-call]

    def let_go(*_: Any) -> None:
        shelf.let_go(0)

    def hook(_module: Any, _inputs: Any, output: Tensor) -> None:
        let_go()
        if output.requires_grad:
            output.register_hook(let_go)  # type: ignore[no-untyped-call]

    if folder is not None:
        for block in stage.model.layers.values():
            block.register_forward_hook(hook)


def _like(parameter: Tensor, flat: Tensor) -> Tensor:
    """A flat piece of a shelf as a tensor that is split as the parameter is."""
    shaped = flat.view(local(parameter).shape)
    if not isinstance(parameter, DTensor):
        return shaped
    return DTensor(shaped, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def own_gradient(parameter: Tensor) -> Tensor:
    """This process's piece of a gradient. That of a norm under sequence parallelism is a part of a sum until now."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    assert gradient is not None
    return local(gradient)


def moves_moments(place: str, parameters: Mapping[str, Tensor]) -> bool:
    """Whether memory.offload_optimizer has an effect: in a CPU run, host memory is where the moments are anyway."""
    return place == "disk" or (place == "host" and on_accelerator(local(next(iter(parameters.values()))).device))


def on_accelerator(device: torch.device) -> bool:
    """Whether weights must be copied to be updated by the CPU."""
    return device.type != "cpu"

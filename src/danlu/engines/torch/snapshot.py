"""What a process writes of a checkpoint: its slices of weights and optimizer states, and its random state.

One process leaves the weights in the Hugging Face layout, several leave slices of them; docs/checkpoints.md tells the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from danlu.engines.hugging_face import split_files, write_index
from danlu.engines.stored import Stored
from danlu.engines.torch.safetensors_file import write_file
from danlu.engines.torch.slices import Slice, stored, write_slices

WEIGHTS, OPTIMIZER = "weights-{:05d}.safetensors", "optimizer-{:05d}.safetensors"
"""By the rank of the process that wrote it."""
RANDOM = "random."


class Buffers:
    """Host memory that one save after the other is copied to."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def copy(self, slices: Mapping[str, Slice]) -> dict[str, Slice]:
        """The slices as they are now; valid until the next copy of the same names."""
        copies = {name: Slice(offsets, self._copied(name, tensor)) for name, (offsets, tensor) in slices.items()}
        if any(tensor.is_cuda for _, tensor in slices.values()):
            torch.cuda.synchronize()
        return copies

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        held = self.held.get(name)
        if held is None or held.shape != tensor.shape:
            held = self.held[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return held.copy_(tensor, non_blocking=True)


def write(weights: Mapping[str, Slice], states: Mapping[str, Slice], folder: Path, rank: int, alone: bool) -> list[Path]:
    """The files of one process; returns them. OSError: the disk is full, or another failed write."""
    optimizer = folder / OPTIMIZER.format(rank)
    if alone:
        sizes = {name: each.tensor.nbytes for name, each in weights.items()}
        files = split_files(sizes)
        for file, names in files.items():
            write_file({name: weights[name].tensor for name in names}, folder / file)
        paths = write_index(files, sizes, folder)
        write_file({name: each.tensor for name, each in states.items()}, optimizer)
    else:
        paths = [folder / WEIGHTS.format(rank)]
        write_slices(weights, paths[0])
        write_slices(states, optimizer)
    return [*paths, optimizer]


def optimizer_states(folder: Path) -> Iterator[Stored]:
    """The optimizer states of a checkpoint. UserError: a file is cut off."""
    files = sorted(folder.glob("optimizer-*.safetensors"))
    return (found for found in stored(files) if not found.name.startswith(RANDOM))


def random_states(device: torch.device) -> dict[str, Slice]:
    """Of this process, by ``random.<device>``."""
    states = {RANDOM + "cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[RANDOM + "cuda"] = torch.cuda.get_rng_state(device)
    return {name: Slice((0,), state) for name, state in states.items()}


def set_random_states(folder: Path, rank: int, device: torch.device) -> None:
    """This rank's of a checkpoint; the first one's, where there was no such rank."""
    own = folder / OPTIMIZER.format(rank)
    for found in stored([own if own.is_file() else folder / OPTIMIZER.format(0)]):
        if found.name == RANDOM + "cpu":
            torch.set_rng_state(found.content[()])
        elif found.name == RANDOM + "cuda" and device.type == "cuda":
            torch.cuda.set_rng_state(found.content[()], device)

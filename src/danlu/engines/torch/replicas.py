"""Copies that must be equal: the same parameter on the ranks that replicate it, down to the last bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from danlu.engines.torch.layout import Layout
from danlu.model.drawing import EMBEDDING, HEAD

DIMENSIONS = ("replicate", "tensor")
_ODD = 2654435761
"""Weight of a row's sum: odd, so that no flipped bit is lost, and different by row, so that rows that change places show."""
_NAMED = 3


@torch.no_grad()
def checksum(parameter: Tensor) -> Tensor:
    """A 64-bit sum of this process's bits, on the device: any one flipped bit changes it."""
    local = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).contiguous()
    if not local.numel():  # split over more ranks than it has rows
        return torch.zeros((), dtype=torch.int64, device=local.device)
    bits = local.view({4: torch.int32, 2: torch.int16, 1: torch.int8}[local.element_size()])
    rows = bits.reshape(bits.shape[0] if bits.ndim > 1 else 1, -1).sum(1, dtype=torch.int64)
    weights = torch.arange(rows.numel(), device=rows.device, dtype=torch.int64) * (2 * _ODD) + 1
    return (rows * weights).sum()


def differences(parameters: Mapping[str, Tensor], layout: Layout, pair: dist.ProcessGroup | None) -> list[str]:
    """Which parameters differ between which ranks that replicate them; the same on every rank. All ranks must call.

    Data ranks without ZeRO replicate all of them, tensor ranks those that tensor parallelism does not split, and the ranks of
    ``pair``, the two ends of a pipeline, the tied embeddings.
    """
    if layout.mesh is None:
        return []
    sums = {name: checksum(parameter).to(layout.mesh.device_type) for name, parameter in parameters.items()}
    copies: list[tuple[dist.ProcessGroup, list[str]]] = []
    for dimension in DIMENSIONS:
        if layout.submesh(dimension).size() > 1:
            copies.append((layout.submesh(dimension).get_group(), [n for n in sums if _replicated(parameters[n], dimension)]))
    if pair is not None:
        copies.append((pair, [EMBEDDING if EMBEDDING in sums else HEAD]))
    differ = [(group, found) for group, names in copies if (found := _unequal(sums, names, group))]
    if not layout.any(bool(differ)):
        return []
    told = [_described(sums, names, group) for group, names in differ]
    return sorted({text for each in layout.gather(told) for text in each})


def _replicated(parameter: Tensor, dimension: str) -> bool:
    """Whether the ranks along a dimension of the mesh hold the same values."""
    if not isinstance(parameter, DTensor) or dimension not in (names := parameter.device_mesh.mesh_dim_names or ()):
        return True
    return parameter.placements[names.index(dimension)].is_replicate()


def _unequal(sums: Mapping[str, Tensor], names: list[str], group: dist.ProcessGroup) -> list[str]:
    """The names whose sums are not the same on all ranks of the group, by one small collective."""
    if not names:
        return []
    mine = torch.stack([sums[name] for name in names])
    # The largest of the sums and of their complements: equal sums have them at the same place.
    largest = torch.cat([mine, ~mine])
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    top, bottom = largest.chunk(2)
    return [name for name, same in zip(names, (top == ~bottom).tolist(), strict=True) if not same]


def _described(sums: Mapping[str, Tensor], names: list[str], group: dist.ProcessGroup) -> str:
    """The parameters, the ranks, and those of them that differ from most."""
    ranks = dist.get_process_group_ranks(group)
    held: list[tuple[int, ...]] = [()] * len(ranks)
    dist.all_gather_object(held, tuple(int(sums[name]) for name in names), group=group)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = f"{', '.join(names[:_NAMED])}{more} on ranks {', '.join(map(str, ranks))}"
    most, count = Counter(held).most_common(1)[0]
    odd = [str(rank) for rank, each in zip(ranks, held, strict=True) if each != most]
    return f"{text} (rank {', '.join(odd)} against the rest)" if 2 * count > len(ranks) else text

"""Seconds of collectives by volume, over the links that they really cross.

A ring moves (n - 1) / n of the data past every member for all-gather and reduce-scatter, twice that for all-reduce (Patarasuk &
Yuan 2009). A group that spans nodes moves at the slower of its two kinds of link: with k members in each node the k rails share
the data between nodes, so that each carries 1 / k of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from danlu.plan.constants import Rates
from danlu.plan.hardware import Hardware


@dataclass(frozen=True)
class Group:
    """Devices that communicate: how many, and the distance of neighbours in the numbering of devices."""

    size: int
    stride: int = 1

    def per_node(self, hardware: Hardware) -> int:
        """Members in one node; nodes are filled in order."""
        return max(1, min(self.size, hardware.devices_per_node // self.stride))


def gather_seconds(volume: float, group: Group, hardware: Hardware, rates: Rates) -> float:
    """All-gather or reduce-scatter: `volume` bytes are the whole tensor that every member ends or begins with."""
    if group.size == 1 or volume == 0:
        return 0.0
    inside = group.per_node(hardware)
    link = hardware.node_link * rates.node_link
    if inside < group.size:
        # Between nodes every member sends over its own network port; the ring's other hops stay inside.
        link = min(link, hardware.network * rates.network * inside)
    return latency(group, hardware, rates) + volume * (group.size - 1) / group.size / link


def reduce_seconds(volume: float, group: Group, hardware: Hardware, rates: Rates) -> float:
    """All-reduce of `volume` bytes: the volume of two rings, the latency of two trees (NCCL picks trees for that reason)."""
    ring = gather_seconds(volume, group, hardware, rates) - latency(group, hardware, rates)
    return 2 * (ring + latency(group, hardware, rates, tree=True))


def latency(group: Group, hardware: Hardware, rates: Rates, tree: bool = False) -> float:
    """Seconds that an empty message takes around a group's ring, or up its tree."""
    if group.size == 1:
        return 0.0
    inside = group.per_node(hardware)
    nodes = ceil(group.size / inside)
    hops = (nodes if not tree else ceil(log2(nodes))) if nodes > 1 else 0
    return rates.node_latency * inside + rates.network_latency * hops


def send_seconds(volume: float, stride: int, hardware: Hardware, rates: Rates) -> float:
    """Point to point between devices that are `stride` apart in the numbering."""
    if stride < hardware.devices_per_node:
        return rates.node_latency + volume / (hardware.node_link * rates.node_link)
    return rates.network_latency + volume / (hardware.network * rates.network)

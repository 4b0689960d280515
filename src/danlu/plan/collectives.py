"""Seconds of collectives by volume, over the links that they really cross.

A ring moves (n - 1) / n of the data past every member for all-gather and reduce-scatter, twice that for all-reduce (Patarasuk &
Yuan 2009). A group that spans nodes moves at the slower of its two kinds of link: with k members in each node the k rails share
the data between nodes, so that each carries 1 / k of it.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    nodes = -(-group.size // inside)
    share = (group.size - 1) / group.size
    seconds = rates.node_latency * inside
    link = hardware.node_link * rates.node_link
    if nodes == 1:
        return seconds + share * volume / link
    # Between nodes every member sends over its own network port; the ring's other hops stay inside.
    network = hardware.network * rates.network * inside
    return seconds + rates.network_latency * nodes + share * volume / min(link, network)


def reduce_seconds(volume: float, group: Group, hardware: Hardware, rates: Rates) -> float:
    """All-reduce of `volume` bytes."""
    return 2 * gather_seconds(volume, group, hardware, rates)


def send_seconds(volume: float, stride: int, hardware: Hardware, rates: Rates) -> float:
    """Point to point between devices that are `stride` apart in the numbering."""
    if stride < hardware.devices_per_node:
        return rates.node_latency + volume / (hardware.node_link * rates.node_link)
    return rates.network_latency + volume / (hardware.network * rates.network)

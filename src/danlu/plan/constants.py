"""Efficiency constants: what share of its peaks a class of hardware reaches. ``danlu.plan.fit`` writes constants.yaml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

FITTED, PRIORS = "constants.yaml", "priors.yaml"
DEFAULT = "ampere"
"""The family that stands in for one that nobody has named."""


class Rates(BaseModel):
    """What a hardware family achieves of the peaks in a hardware file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    matmul: float = Field(gt=0, description="Share of the peak that a large matrix product in 16 bit reaches.")
    matmul_fp8: float = Field(gt=0, description="The same in 8 bit.")
    attention: float = Field(gt=0, description="Share of the peak that a flash attention kernel reaches, forward.")
    bandwidth: float = Field(gt=0, description="Share of the memory bandwidth that element-wise kernels reach.")
    node_link: float = Field(gt=0, description="Share of a link's one-direction rate that a ring inside a node reaches.")
    network: float = Field(gt=0, description="The same between nodes.")
    launch: float = Field(ge=0, description="Seconds before a kernel does work, when it is not hidden behind the one before.")
    node_latency: float = Field(ge=0, description="Seconds per member of a collective inside a node.")
    network_latency: float = Field(ge=0, description="Seconds per node that a collective spans.")
    skew: float = Field(ge=0, description="Seconds a step by which every further node delays the rest: the slowest one decides.")
    host: float = Field(ge=0, description="Seconds of an optimizer step in which the device waits for its host.")


@cache
def rates(family: str) -> Rates:
    """The constants of a hardware family: fitted, or its prior, or those of the family that it borrows from."""
    fitted, known = stored()["rates"], priors()
    name = family if family in known else DEFAULT
    while isinstance(known[name], str):
        name = known[name]
    return Rates.model_validate(fitted.get(name, known[name]))


@cache
def allocator(engine_name: str, compiled: bool) -> float:
    """Bytes that an engine's allocator holds for activations and temporaries per byte of them that is alive.

    1 for engines whose published memory is what tensors take; fitted where it is what the allocator has reserved.
    """
    return float(stored()["allocator"].get(allocator_key(engine_name, compiled), 1.0))


def allocator_key(engine_name: str, compiled: bool) -> str:
    """The name of an allocator constant."""
    return f"{engine_name}-{'compiled' if compiled else 'eager'}"


@cache
def stored() -> Any:
    """The fitted constants with their residuals."""
    return _load(FITTED)


@cache
def priors() -> Any:
    """What the fit starts from, by family; a name stands for the family that is borrowed from."""
    return _load(PRIORS)


def _load(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((resources.files("danlu.plan") / name).read_text(encoding="utf-8"))

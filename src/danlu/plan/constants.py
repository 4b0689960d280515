"""Efficiency constants: what share of its peaks a class of hardware reaches. ``danlu.plan.fit`` writes constants.yaml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

FILE = "constants.yaml"


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
    """The constants of a hardware family; families without measured rows borrow those of the nearest one that has some."""
    table = stored()["rates"]
    value = table.get(family, table["default"])
    while isinstance(value, str):
        value = table[value]
    return Rates.model_validate(value)


@cache
def stored() -> Any:
    """The whole file, residuals included."""
    text = (resources.files("danlu.plan") / FILE).read_text(encoding="utf-8")
    return YAML(typ="safe", pure=True).load(text)

"""A device and the machine around it, from a YAML file: shipped by name, or anyone's own by path."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from danlu.encoding import decoded
from danlu.errors import UserError
from danlu.plan.measured import Share, share


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Peak(_Part):
    """Dense operations a second of matrix products (a multiply and an add are two); null: not supported."""

    fp32: float = Field(gt=0)
    bf16: float | None = Field(None, gt=0)
    fp16: float | None = Field(None, gt=0)
    fp8: float | None = Field(None, gt=0)


class Hardware(_Part):
    """One kind of device in one kind of machine. Bytes, seconds, operations a second."""

    name: str
    family: str = Field(description="Class that the efficiency constants are fitted for: ampere, hopper, ada, ascend, ...")
    memory: float = Field(gt=0, description="Bytes that a process can use: what the driver reports, not what the box says.")
    bandwidth: float = Field(gt=0, description="Bytes a second between the device and its memory.")
    peak: Peak
    sustained: float = Field(
        1.0, gt=0, le=1, description="Share of the peak clock that the power limit leaves, relative to its family."
    )
    multiprocessors: int = Field(gt=0, description="Units that work on one tile of a matrix product each.")
    devices_per_node: int = Field(gt=0)
    node_link: float = Field(gt=0, description="Bytes a second and direction from one device to the others of its machine.")
    network: float = Field(gt=0, description="Bytes a second and direction from one device to other machines.")
    host_link: float = Field(gt=0, description="Bytes a second and direction between the device and its host's memory.")
    disk: float = Field(2e9, gt=0, description="Bytes a second that one device's share of the machine's disks takes.")
    host_memory: float = Field(gt=0, description="Bytes of host memory per device.")
    price: float = Field(ge=0, description="US dollars per device and hour.")
    measured: tuple[Share, ...] = Field(
        (), description="Curves that `danlu hardware measure` has fitted, by processes at once; they replace the rates above."
    )

    def of(self, processes: int) -> Hardware:
        """What each of so many processes has: on a CPU a part of the memory."""
        if self.family != "cpu" or not self.measured:
            return self
        return self.model_copy(update={"memory": self.memory / processes, "host_memory": self.host_memory / processes})

    def share(self, processes: int) -> Share | None:
        """What was measured with so many processes at once; None: nothing was."""
        return share(self.measured, processes) if self.measured else None

    def rate(self, precision: str) -> float:
        """Peak operations a second of a precision; 16 bit stands in where 8 bit is missing, FP32 where that is."""
        half = self.peak.bf16 or self.peak.fp16 or self.peak.fp32
        found = {"fp8": self.peak.fp8 or half, "bf16": half, "fp16": self.peak.fp16 or half}
        return found.get(precision, self.peak.fp32) * self.sustained


def names() -> list[str]:
    """The devices that are shipped."""
    return sorted(each.name.removesuffix(".yaml") for each in _folder().iterdir() if each.name.endswith(".yaml"))


@cache
def load(name: str) -> Hardware:
    """A shipped device by its name, or any file by its path. UserError: neither, or a field is wrong."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise UserError(f"hardware: no file {name}; give an existing one, or one of {', '.join(names())}")
        return parse(decoded(path.read_bytes(), path), name)
    shipped = _folder() / f"{name.lower()}.yaml"
    if not shipped.is_file():
        raise UserError(f"hardware: {name!r} is unknown; give one of {', '.join(names())}, or the path of a .yaml file")
    return parse(shipped.read_text(encoding="utf-8"), name)


def parse(text: str, origin: str) -> Hardware:
    """The text of a file; `origin` names it in errors."""
    try:
        value: Any = YAML(typ="safe", pure=True).load(text)
        return Hardware.model_validate(value)
    except YAMLError as error:
        raise UserError(f"{origin}: not valid YAML ({' '.join(str(error).split())})") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{origin}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from error


def _folder() -> Any:
    return resources.files("danlu.plan") / "hardware"

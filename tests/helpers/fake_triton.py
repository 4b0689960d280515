"""Stands for tritonserver around a Python model: what danlu uses of `triton_python_backend_utils`, and requests."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


class TritonModelException(Exception):
    """What a model raises that cannot be loaded."""


@dataclass
class TritonError:
    """Why a request failed."""

    text: str
    number: int = 0
    INTERNAL, UNAVAILABLE, INVALID_ARG = 1, 4, 3

    def message(self) -> str:
        return self.text

    def code(self) -> int:
        return self.number


@dataclass
class Tensor:
    """A named array."""

    given: str
    array: Any

    def name(self) -> str:
        return self.given

    def as_numpy(self) -> Any:
        return self.array


@dataclass
class InferenceResponse:
    """Tensors or an error."""

    tensors: list[Tensor] = field(default_factory=list)
    error_: TritonError | None = None

    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.tensors, self.error_ = output_tensors or [], error

    def has_error(self) -> bool:
        return self.error_ is not None

    def error(self) -> TritonError | None:
        return self.error_

    def output_tensors(self) -> list[Tensor]:
        return self.tensors


class Sender:
    """Where the responses of a request arrive. Like tritonserver's, it takes nothing after the last."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[InferenceResponse | None, int]] = queue.Queue()
        self.cancelled, self.ended = False, False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.ended, "a response after the last one"
        self.ended = bool(flags)
        self.arrived.put((response, flags))

    def is_cancelled(self) -> bool:
        return self.cancelled

    def responses(self) -> Iterator[InferenceResponse]:
        """Until the last one."""
        flags = 0
        while not flags:
            response, flags = self.arrived.get(timeout=60)
            if response is not None:
                yield response


class Request:
    """Inputs by name, and a sender."""

    def __init__(self, **inputs: Any) -> None:
        self.inputs, self.sender = inputs, Sender()

    def get_response_sender(self) -> Sender:
        return self.sender


class Backend(ModuleType):
    """The module. ``models`` holds what requests of a model to another reach."""

    Tensor, InferenceResponse, TritonError, TritonModelException = Tensor, InferenceResponse, TritonError, TritonModelException
    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    def __init__(self) -> None:
        super().__init__("triton_python_backend_utils")
        self.models: dict[str, Any] = {}

    @staticmethod
    def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
        return Tensor(name, request.inputs[name]) if name in request.inputs else None

    def InferenceRequest(self, model_name: str, requested_output_names: list[str], inputs: list[Tensor]) -> Any:
        """A model's request to another."""
        backend = self

        class _Inner:
            def exec(self, decoupled: bool) -> Iterator[InferenceResponse]:
                assert decoupled and requested_output_names
                request = Request(**{each.given: each.array for each in inputs})
                backend.models[model_name].execute([request])
                return request.sender.responses()

        return _Inner()


def arguments(repository: Path, name: str, parameters: dict[str, str]) -> dict[str, str]:
    """What tritonserver tells a model when it is loaded."""
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    return {
        "model_name": name,
        "model_version": "1",
        "model_repository": str(repository / name),
        "model_config": json.dumps(config),
    }


def words(*texts: str | bytes, rows: bool = False) -> Any:
    """Texts as a tensor of bytes: one a row, or flat."""
    array = np.array([each.encode() if isinstance(each, str) else each for each in texts], object)
    return array.reshape(-1, 1) if rows else array

"""A model repository as tritonserver reads it: two models for one that answers.

`NAME` gives an answer as a whole: over HTTP and gRPC, batched by tritonserver. `NAME_stream` is decoupled, so it can give one in
pieces, and only over gRPC streams and `generate_stream`. The engine lives in the second; the first asks it for every text. So
both share its weights, its cache and its batches. The names of tensors are those of Triton's vLLM backend.
"""

from __future__ import annotations

import re
from pathlib import Path

from danlu.errors import UserError

STREAM = "_stream"
WEIGHTS = "model"
"""Folder of the model, in the folder of its version."""
CONFIG = "config.pbtxt"
BATCH = 64
"""Texts that tritonserver hands over in one call."""
QUEUE = 1024
"""Requests that wait in tritonserver; more are refused."""

_MODEL = '''"""Written by `danlu triton export`; needs danlu in the Python of the server."""

from danlu.triton_models import {kind} as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
_INPUTS = """\
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }}{more}
]
output [
  {{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "finish_reason" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }}
]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_WHOLE = """\
name: "{name}"
backend: "python"
max_batch_size: {batch}
dynamic_batching {{ default_queue_policy {{ max_queue_size: {queue} }} }}
"""
_STREAM = """\
name: "{name}"
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
parameters {{ key: "cache_tokens" value {{ string_value: "{cache_tokens}" }} }}
"""


def check_name(name: str) -> None:
    """UserError: no name for a folder and a path of HTTP."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"--name {name!r}: tritonserver wants letters, digits, '.', '_' and '-'")


def write_whole(folder: Path, name: str) -> None:
    """The model that gives answers as a whole, into a new folder."""
    _write(folder, _WHOLE.format(name=name, batch=BATCH, queue=QUEUE) + _INPUTS.format(more=""), "Whole")


def write_stream(folder: Path, name: str, cache_tokens: int) -> Path:
    """The model that holds the engine; returns the folder that its weights belong into."""
    more = ',\n  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }'
    _write(folder, _STREAM.format(name=name + STREAM, cache_tokens=cache_tokens) + _INPUTS.format(more=more), "Streaming")
    weights = folder / "1" / WEIGHTS
    weights.mkdir()
    return weights


def names(repository: Path) -> list[str]:
    """The models of a repository. UserError: it is none."""
    if not repository.is_dir():
        raise UserError(f"{repository}: there is no such folder; make it with: danlu triton export MODEL {repository}")
    found = sorted(config.parent.name for config in repository.glob(f"*/{CONFIG}"))
    if not found:
        raise UserError(f"{repository}: holds no model; add one with: danlu triton export MODEL {repository}")
    return found


def _write(folder: Path, config: str, kind: str) -> None:
    (folder / "1").mkdir()
    (folder / CONFIG).write_text(config, encoding="utf-8")
    (folder / "1" / "model.py").write_text(_MODEL.format(kind=kind), encoding="utf-8")

"""What a run has trained, for programs that read neither safetensors nor its folder: GGUF, or the adapter alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from danlu.data.arrays import Array
from danlu.engines.hugging_face import hugging_face_files
from danlu.errors import DanluError, UserError
from danlu.export import written
from danlu.files import sync, why
from danlu.pretrained.gguf_write import write_gguf
from danlu.stages import Trained

ADAPTER = "adapter_config.json"


def check_file(file: Path, replace: bool) -> None:
    """UserError: the file exists and is not to be replaced, or is a folder."""
    if file.is_dir() or (file.exists() and not replace):
        raise UserError(f"{file} exists; give another file with --to, or --replace to overwrite it")


def export_gguf(trained: Trained, file: Path, kind: str, replace: bool) -> Path:
    """Write one file aside, then rename. UserError: it exists, or cannot hold this model. DanluError: the disk is full."""
    check_file(file, replace)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".danlu-export-", dir=file.parent) as name:
            folder = Path(name)
            trained.engine.export_weights(folder, "fp32")
            partial = folder / "model.gguf"
            tensors = _Tensors(folder)
            write_gguf(trained.shape, tensors.read, trained.prepared.folder, partial, kind, trained.recipe.name)
            sync(partial)
            os.replace(partial, file)
    except OSError as error:
        raise DanluError(f"{file}: cannot be written: {why(error)}; nothing was changed there") from error
    return file


def export_adapter(trained: Trained, folder: Path, replace: bool) -> Path:
    """Write a folder as PEFT has it. UserError: it exists, or the run has no adapter. DanluError: the disk is full."""
    if trained.recipe.train.lora is None:
        raise UserError("the run has no adapter (train.lora is null); export it in another format")
    with written(folder, replace, ADAPTER) as partial:
        trained.engine.export_adapter(partial)
    return folder


class _Tensors:
    """Float32 tensors by name, from the files of a folder."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._places: dict[str, Path] = {}
        for file in hugging_face_files(folder):
            with safe_open(file, framework="np") as reader:
                self._places |= dict.fromkeys(reader.keys(), file)

    def read(self, name: str) -> Array:
        from safetensors import safe_open

        with safe_open(self._places[name], framework="np") as reader:
            return np.asarray(reader.get_tensor(name))

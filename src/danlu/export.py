"""A trained run as a folder in the Hugging Face layout."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.data import tokenizer as tokenizers
from danlu.errors import DanluError, UserError
from danlu.files import sync, why, write_json
from danlu.model.families import TensorType, to_hugging_face
from danlu.stages import Trained

TORCH_NAMES: dict[str, TensorType] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


CONFIG = "config.json"


def check(folder: Path, replace: bool, sign: str = CONFIG) -> None:
    """UserError: the folder exists and is not to be replaced, or is no export, by which is meant that it holds ``sign``."""
    if not folder.exists():
        return
    if not (folder / sign).is_file():
        raise UserError(f"{folder} exists and is no export; give another folder with --to")
    if not replace:
        raise UserError(f"{folder} exists; give another folder with --to, or --replace to overwrite it")


def export(trained: Trained, folder: Path, dtype: str, replace: bool) -> Path:
    """Write config.json, generation_config.json, safetensors and the tokenizer; errors as in ``written``."""
    tokenizer = trained.tokenizer
    ends = {"bos_token_id": tokenizer.begin_id, "eos_token_id": tokenizer.end_id}
    with written(folder, replace) as partial:
        config = to_hugging_face(trained.shape, **ends, dtype=TORCH_NAMES[dtype])
        write_json(partial / CONFIG, config)
        write_json(partial / "generation_config.json", {key: value for key, value in ends.items() if value is not None})
        trained.engine.export_weights(partial, dtype)
        for name in (tokenizers.FILE, tokenizers.SETTINGS):
            shutil.copyfile(trained.prepared.folder / name, partial / name)
    return folder


@contextmanager
def written(folder: Path, replace: bool, sign: str = CONFIG) -> Iterator[Path]:
    """A new folder to write a model into, aside; it is renamed when the body is done.

    UserError: see ``check``, or nothing can be written there. DanluError: the writing fails in the middle (a full disk);
    nothing is left half written, and an export that was to be replaced is still there.
    """
    check(folder, replace, sign)
    place = Path(os.path.abspath(folder))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, since whatever lies beside the export may be the user's.
        aside = Path(tempfile.mkdtemp(prefix=".danlu-export-", dir=place.parent))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {why(error)}; give another folder with --to") from None
    partial, previous = aside / "new", aside / "previous"  # inside it, as mkdtemp's own permissions are for one user only
    try:
        partial.mkdir()
        yield partial
        for file in partial.iterdir():
            sync(file)
        if place.exists():
            os.replace(place, previous)
        os.replace(partial, place)
    except OSError as error:
        raise DanluError(f"{folder}: cannot be written: {why(error)}; nothing was changed there") from error
    finally:
        if previous.exists() and not place.exists():
            os.replace(previous, place)
        shutil.rmtree(aside, ignore_errors=True)

"""A trained run as a folder in the Hugging Face layout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.data import tokenizer as tokenizers
from danlu.errors import DanluError, UserError
from danlu.files import sync, why, write_json
from danlu.model.families import to_hugging_face
from danlu.stages import Trained

TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def export(trained: Trained, folder: Path, dtype: str, replace: bool) -> Path:
    """Write config.json, generation_config.json, safetensors and the tokenizer aside, then rename.

    UserError: the folder exists and is not to be replaced. DanluError: the disk is full; nothing is left half written.
    """
    if folder.exists() and not (replace and (folder / "config.json").is_file()):
        raise UserError(f"{folder} exists; give another folder with --to, or --replace for an export made before")
    partial = folder.with_name(folder.name + ".partial")
    tokenizer = trained.tokenizer
    ends = {"bos_token_id": tokenizer.begin_id, "eos_token_id": tokenizer.end_id}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        config = to_hugging_face(trained.shape, **ends, dtype=TORCH_NAMES[dtype])
        write_json(partial / "config.json", config)
        write_json(partial / "generation_config.json", {key: value for key, value in ends.items() if value is not None})
        trained.engine.export_weights(partial, dtype)
        for name in (tokenizers.FILE, tokenizers.SETTINGS):
            shutil.copyfile(trained.prepared.folder / name, partial / name)
        for file in partial.iterdir():
            sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    except OSError as error:
        raise DanluError(f"{folder}: cannot be written: {why(error)}; nothing was left there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder

"""The models that danlu carries, and those of a user, by the name that a recipe gives them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from danlu.data.curate.linear.model import Linear
from danlu.data.curate.perplexity.model import Ngrams
from danlu.errors import UserError

FOLDER = Path(__file__).parent / "models"
QUALITY, TOXICITY = FOLDER / "quality.safetensors", FOLDER / "toxicity.safetensors"
"""Written by `make text-models`."""


def model_at(path: str, default: Path) -> Linear:
    """The model of a recipe's path, loaded once; `default` stands for the one that danlu carries."""
    return _load(default if path == "default" else Path(path).expanduser())


@cache
def _load(path: Path) -> Linear:
    return Linear.load(path)


def ngrams_at(path: str) -> Ngrams:
    """The model of perplexity of a recipe's path, loaded once."""
    return _load_ngrams(Path(path).expanduser())


@cache
def _load_ngrams(path: Path) -> Ngrams:
    return Ngrams.load(path)


def digest_of(path: str, default: Path, where: str) -> str:
    """SHA-256 of the file.

    Raises:
        UserError: it cannot be read.
    """
    file = default if path == "default" else Path(path).expanduser()
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{where}: {file}: cannot be read: {error.strerror}; make it with danlu data train-scorer") from None

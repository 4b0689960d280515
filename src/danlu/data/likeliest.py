"""What a teacher finds likeliest at every place of the samples of an epoch, on disk: tokens, and the logs of their probabilities.

A folder holds shards of whole samples in their order, ``tokens-00000.npy`` (samples, sequence_length, k) and ``logs-00000.npy``
(samples, sequence_length, k + 1) in float16, the last of which is that of all other tokens together; and in ``likeliest.json``
what they were made from. That is written last: without it the folder is not complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.errors import UserError
from danlu.files import aside, sync, why, write_json

FILE = "likeliest.json"
BEGUN = "begun.json"
TOKENS, LOGS = "teacher_tokens", "teacher_logs"
"""Names in a batch."""
SHARD_BYTES = 256 << 20
Answers = Callable[[int, int], tuple[Array, Array]]
"""(tokens, logs) for the samples from one number to before another."""
_NAMES = {
    "teacher": "of another teacher",
    "data": "of other data",
    "tokenizer": "of texts in other tokens",
    "sequence_length": "of samples of another length",
    "document_mask": "with documents that see each other, or not",
    "samples": "of another number of samples",
    "top_k": "of another number of tokens",
    "temperature": "at another temperature",
}


class Made(NamedTuple):
    """What a folder of a teacher's answers was made from; each makes another folder of it."""

    teacher: str
    data: str
    tokenizer: str
    sequence_length: int
    document_mask: bool
    samples: int
    top_k: int
    temperature: float
    vocabulary: int

    @property
    def token_type(self) -> type[np.uint16] | type[np.int32]:
        """The narrowest that holds every token."""
        return np.uint16 if self.vocabulary <= 1 << 16 else np.int32

    @property
    def bytes_per_token(self) -> int:
        """On disk."""
        return self.top_k * (np.dtype(self.token_type).itemsize + 2) + 2

    @property
    def shard_samples(self) -> int:
        """Samples of every shard but the last."""
        return max(1, SHARD_BYTES // (self.sequence_length * self.bytes_per_token))


class Likeliest:
    """A complete folder, open for reading; it goes to the processes that assemble batches as its path."""

    def __init__(self, folder: Path, made: Made) -> None:
        self.folder, self.made = folder, made

    def of(self, indices: Array) -> dict[str, Array]:
        """For samples by number: int32 "teacher_tokens" (samples, length, k), float16 "teacher_logs" (samples, length, k + 1)."""
        shape, k = (len(indices), self.made.sequence_length), self.made.top_k
        tokens, logs = np.empty((*shape, k), np.int32), np.empty((*shape, k + 1), np.float16)
        for row, index in enumerate(indices.tolist()):
            shard, place = divmod(index, self.made.shard_samples)
            tokens[row], logs[row] = (array[place] for array in self._shards[shard])
        return {TOKENS: tokens, LOGS: logs}

    @cached_property
    def _shards(self) -> list[tuple[Array, Array]]:
        return [_mapped(self.folder, self.made, shard) for shard in range(-(-self.made.samples // self.made.shard_samples))]

    def mass(self) -> float:
        """The mean probability of all tokens that are kept of a place."""
        total = sum(float(np.exp(logs[..., :-1], dtype=np.float64).sum()) for _, logs in self._shards)
        return total / (self.made.samples * self.made.sequence_length)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "made": self.made}


def found(folder: Path) -> Likeliest | None:
    """What a folder holds; None: nothing complete. UserError: it is damaged."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        return Likeliest(folder, Made(**{name: told[name] for name in Made._fields}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: damaged ({type(error).__name__}: {error}); delete the folder") from None


def check(folder: Path, made: Made, wanted: Made) -> None:
    """UserError: a folder was made from something else than what is wanted, which is named."""
    other = [text for name, text in _NAMES.items() if getattr(made, name) != getattr(wanted, name)]
    if other:
        told = " and ".join(other)
        raise UserError(f"train.distill.cache: {folder} holds answers {told}; name another folder, or delete it to ask again")


def write(folder: Path, made: Made, answers: Answers, report: Callable[[str], None]) -> Likeliest:
    """Ask for the answers to all samples, shard by shard; what is there already is kept.

    UserError: the folder holds the beginning of something else, or cannot be written.
    """
    begun = folder / BEGUN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if begun.is_file():
            check(folder, Made(**json.loads(begun.read_text(encoding="utf-8"))), made)
        write_json(begun, made._asdict())
        for shard, first in enumerate(range(0, made.samples, made.shard_samples)):
            end = min(first + made.shard_samples, made.samples)
            if not all((folder / name).is_file() for name in _files(shard)):
                tokens, logs = answers(first, end)
                for name, array in zip(_files(shard), (tokens.astype(made.token_type), logs), strict=True):
                    _save(folder / name, array)
            report(f"teacher: {end:,} of {made.samples:,} samples")
        complete = Likeliest(folder, made)
        facts = {"bytes_per_token": made.bytes_per_token, "mean_mass": complete.mass()}
        write_json(folder / FILE, {**made._asdict(), **facts})
        begun.unlink()
    except OSError as error:
        raise UserError(f"train.distill.cache: {folder} cannot be written: {why(error)}") from None
    return complete


def facts(folder: Path) -> Mapping[str, Any]:
    """What a complete folder tells of itself."""
    told: Mapping[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return told


def _files(shard: int) -> tuple[str, str]:
    return f"tokens-{shard:05d}.npy", f"logs-{shard:05d}.npy"


def _save(path: Path, array: Array) -> None:
    partial = aside(path)
    with partial.open("wb") as file:
        np.save(file, array)
    sync(partial)
    os.replace(partial, path)


def _mapped(folder: Path, made: Made, shard: int) -> tuple[Array, Array]:
    """UserError: a shard is missing or cut off."""
    samples = min(made.shard_samples, made.samples - shard * made.shard_samples)
    arrays = []
    kinds = ((made.token_type, made.top_k), (np.float16, made.top_k + 1))
    for name, (kind, width) in zip(_files(shard), kinds, strict=True):
        try:
            array = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{folder / name}: cannot be read ({error}); delete the folder to ask the teacher again") from None
        if array.shape != (samples, made.sequence_length, width) or array.dtype != kind:
            raise UserError(f"{folder / name}: damaged; delete the folder to ask the teacher again")
        arrays.append(array)
    return arrays[0], arrays[1]

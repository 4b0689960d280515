"""A prepared data folder: opening it, and being sure that it is whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from danlu.data.shards import KINDS
from danlu.data.stream import TokenStream
from danlu.data.tokenizer import FILE
from danlu.errors import UserError

INDEX = "index.json"
FORMAT = 1
VERIFY_BELOW = 2 << 30
"""Bytes of shards up to which opening checks the sums of all files too, and not their sizes alone."""
WAY_OUT = "delete the folder and run `danlu prepare` again"


@dataclass(frozen=True)
class Prepared:
    """Token streams, the tokenizer that made them, and the index that describes them.

    index.json: format, dtype, tokenizer {sha256, vocab_size, begin, end, begin_id, end_id, origin}, splits (counts,
    and for each shard counts, sizes and SHA-256), report (what the reader counted), sources (files, bytes, SHA-256 of
    names and sizes), data (the recipe's section).
    """

    folder: Path
    index: dict[str, Any]
    train: TokenStream
    validation: TokenStream

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer.json inside the folder."""
        return self.folder / FILE

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return int(self.index["tokenizer"]["vocab_size"])

    @property
    def begin_id(self) -> int | None:
        """Token before each document; None: there is none."""
        number: int | None = self.index["tokenizer"]["begin_id"]
        return number

    @property
    def end_id(self) -> int:
        """Token after each document."""
        return int(self.index["tokenizer"]["end_id"])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the sums of all shards and of the tokenizer: equal when the same steps see the same batches."""
        parts = [digest for _, _, digest in _files(self.index)] + [self.index["tokenizer"]["sha256"]]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @classmethod
    def open(cls, folder: Path | str, verify: bool | None = None) -> Prepared:
        """Open a folder that `prepare` made.

        Sizes are always checked; SHA-256 sums when `verify` is True, or is None and the shards have at most 2 GiB.

        Raises:
            UserError: no such folder, not one that `prepare` made, or a file that is not as it was written.
        """
        folder = Path(folder)
        index = _read_index(folder)
        try:
            files = _files(index)
            if verify is None:
                verify = sum(size for _, size, _ in files) <= VERIFY_BELOW
            for name, size, digest in files:
                _check(folder / name, size, digest if verify else None)
            _check(folder / FILE, None, index["tokenizer"]["sha256"])
            dtype = np.dtype(index["dtype"])
            together = 2 if index.get("samples") == "pairs" else 1
            streams = [TokenStream(folder, dtype, index["splits"][name], together) for name in ("train", "validation")]
        except (KeyError, TypeError) as error:
            raise UserError(f"{folder / INDEX}: damaged ({type(error).__name__}: {error}); {WAY_OUT}") from None
        return cls(folder, index, *streams)


def is_prepared(folder: Path) -> bool:
    """Whether the folder holds finished data; the index is only ever there when all of it is."""
    return (folder / INDEX).is_file()


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder}: no prepared data here (there is no {INDEX}); `danlu prepare` makes it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; {WAY_OUT}") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise UserError(f"{path}: not of format {FORMAT}, which this version of danlu reads; {WAY_OUT}")
    return index


def _files(index: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Name, bytes and SHA-256 of every shard file."""
    return [
        (f"{shard['name']}.{kind}", shard[f"{kind}_file"]["bytes"], shard[f"{kind}_file"]["sha256"])
        for split in index["splits"].values()
        for shard in split["shards"]
        for kind in KINDS
        if f"{kind}_file" in shard
    ]


def _check(path: Path, size: int | None, digest: str | None) -> None:
    try:
        found = path.stat().st_size
        if size is not None and found != size:
            raise UserError(f"{path}: {found:,} bytes, but {size:,} were written; {WAY_OUT}")
        if digest is not None:
            with path.open("rb") as file:
                if (now := hashlib.file_digest(file, "sha256").hexdigest()) != digest:
                    raise UserError(f"{path}: altered since it was written (SHA-256 {now[:12]}…, not {digest[:12]}…); {WAY_OUT}")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {WAY_OUT}") from None

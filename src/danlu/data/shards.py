"""Writing token shards: flat little-endian files of ids, each with a file of the documents' first positions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

STARTS = np.dtype("<i8")
"""Type of the positions, in tokens from the beginning of the shard."""
KINDS = ("tokens", "starts", "supervised")
"""Files of a shard: ids, first positions of documents, and, where not every token is supervised, one byte for each token."""
_BUFFER = 1 << 20


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class _HashedFile:
    """A file that is written once, front to back, and hashed on the way."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_BUFFER)
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, array: np.ndarray[Any, Any]) -> None:
        data = array.tobytes()
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def close(self) -> dict[str, Any]:
        self._file.close()
        return {"bytes": self.size, "sha256": self._hash.hexdigest()}


class ShardWriter:
    """Writes the documents of one split. A document lies in one shard; a shard is closed once it has `shard_tokens`."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], shard_tokens: int, masked: bool = False) -> None:
        """With `masked`, a third file of a shard says of each token whether it is supervised."""
        self._folder, self._split, self._dtype, self._shard_tokens = folder, split, dtype, shard_tokens
        self._masked = masked
        self._files: list[_HashedFile] | None = None
        self._shard: dict[str, Any] = {}
        self.shards: list[dict[str, Any]] = []
        self.tokens = self.documents = self.text_bytes = 0

    def add(self, ids: np.ndarray[Any, Any], text_bytes: int, supervised: np.ndarray[Any, Any] | None = None) -> None:
        """Append a document of at least one token; `text_bytes`: UTF-8 bytes of its text; `supervised`: (tokens,) bool."""
        if self._files is None:
            name = f"{self._split}-{len(self.shards):05d}"
            self._shard = {"name": name, "tokens": 0, "documents": 0, "text_bytes": 0}
            kinds = KINDS if self._masked else KINDS[:2]
            self._files = [_HashedFile(self._folder / f"{name}.{kind}") for kind in kinds]
        tokens, starts = self._files[:2]
        if supervised is not None:
            self._files[2].write(supervised.astype(np.uint8))
        starts.write(np.array([self._shard["tokens"]], STARTS))
        tokens.write(ids.astype(self._dtype))
        for counts, one in (("tokens", len(ids)), ("documents", 1), ("text_bytes", text_bytes)):
            self._shard[counts] += one
        if self._shard["tokens"] >= self._shard_tokens:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._files is None:
            return
        self._shard |= {f"{kind}_file": file.close() for kind, file in zip(KINDS, self._files, strict=False)}
        self._files = None
        self.shards.append(self._shard)
        self.tokens += self._shard["tokens"]
        self.documents += self._shard["documents"]
        self.text_bytes += self._shard["text_bytes"]

    def close(self) -> dict[str, Any]:
        """Finish, and return what the index says of the split."""
        self._close_shard()
        return {"tokens": self.tokens, "documents": self.documents, "text_bytes": self.text_bytes, "shards": self.shards}

"""The texts of benchmark files: every text in a record counts, since the answer must not leak either."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence

from danlu.data.json_values import json_values
from danlu.data.ledger import Ledger
from danlu.data.read import LONGEST, decompressed, documents
from danlu.data.sources import Listing, SourceFile, format_of, resolve
from danlu.data.table import records
from danlu.data.text import decode
from danlu.errors import UserError
from danlu.recipe.data_sections import Source

WHERE = "data.curate.decontaminate.against"


def listed(against: Sequence[str]) -> Listing:
    """The files of the benchmarks; errors name the setting."""
    try:
        return resolve([Source(path=path) for path in against], any_kind=True)
    except UserError as error:
        raise UserError(f"{WHERE}: {str(error).partition('.path: ')[2] or error}") from None


def fingerprint(against: Sequence[str]) -> str:
    """SHA-256 of names, sizes and times of the files."""
    facts = [[file.path, file.size, os.stat(file.path).st_mtime_ns] for file in listed(against).files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def benchmark_texts(against: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Place and text of everything that must not be trained on.

    Raises:
        UserError: a file cannot be read in full: half a benchmark would give false peace.
    """
    for file in listed(against).files:
        kind, compression = format_of(file.path) or ("whole", "")
        try:
            if kind in ("lines", "json"):
                with open(file.path, "rb") as raw, decompressed(raw, compression) as stream:
                    for number, value in enumerate(_lines(stream) if kind == "lines" else json_values(stream, LONGEST), 1):
                        for text in _strings(value):
                            yield f"{file.path}:{number}", text
            elif kind == "table":
                with open(file.path, "rb") as raw, decompressed(raw, compression) as stream:
                    for number, row in enumerate(records(stream, file.path, LONGEST), 1):
                        for text in row:
                            yield f"{file.path}:row {number}", text
            elif kind == "parquet":
                yield from _parquet(file)
            else:
                yield from _plain(file)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            raise UserError(f"{WHERE}: {file.path}: cannot be read: {error}") from None


def _plain(file: SourceFile) -> Iterator[tuple[str, str]]:
    ledger = Ledger()
    for document in documents([file], ledger):
        yield document.place, document.text
    if ledger.bad:
        raise ValueError(ledger.examples[0])


def _lines(stream: object) -> Iterator[object]:
    offset = 0
    for line in stream:  # type: ignore[attr-defined]
        if not line.isspace():
            yield json.loads(decode(line, offset))
        offset += len(line)


def _parquet(file: SourceFile) -> Iterator[tuple[str, str]]:
    import pyarrow.parquet as pq

    row = 0
    with pq.ParquetFile(file.path) as table:
        for batch in table.iter_batches(batch_size=256, use_threads=False):
            for record in batch.to_pylist():
                row += 1
                for text in _strings(record):
                    yield f"{file.path}:row {row}", text


def _strings(value: object) -> Iterator[str]:
    """All texts of a JSON value, to any depth, with those of one record's lists and fields apart."""
    if isinstance(value, str):
        yield value.encode("utf-8", "replace").decode()  # half of a surrogate pair is no character
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)

"""Conversations out of JSON lines, JSON and Parquet; what is none is counted and skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from danlu.data.chat.forms import Unfit
from danlu.data.chat.samples import Sampler
from danlu.data.json_values import json_values
from danlu.data.ledger import Ledger
from danlu.data.read import LONGEST, ROWS, Document, Numbers, line_blocks, read
from danlu.data.sources import SourceFile
from danlu.data.text import NotText, decode


def conversations(files: Iterable[SourceFile], ledger: Ledger, sampler: Sampler) -> Iterator[Document]:
    """Documents with their sample. UserError: too many records are bad."""

    def kept(record: Any, file: SourceFile, place: str) -> Iterator[Document]:
        try:
            samples = sampler.samples(record)
        except Unfit as error:
            ledger.skip(place, str(error))
            return
        text = "\n".join(sample.text for sample in samples)
        ledger.keep(len(text.encode("utf-8")))
        ledger.cut += any(sample.cut for sample in samples)
        yield Document(text, file.source, place, samples=samples)

    def lines(file: SourceFile, stream: Any, _: Ledger) -> Iterator[Document]:
        numbers = Numbers(file)
        for block, start in line_blocks(file, stream):
            at = 0
            while at < len(block):
                end = block.find(b"\n", at) + 1 or len(block)
                place, line = numbers.place(start + at), block[at:end]
                if not line.isspace():
                    try:
                        record = json.loads(decode(line, start + at))
                    except (NotText, ValueError, RecursionError) as error:
                        ledger.skip(place, f"not JSON: {error}")
                    else:
                        yield from kept(record, file, place)
                at = end

    def values(file: SourceFile, stream: Any, _: Ledger) -> Iterator[Document]:
        for number, record in enumerate(json_values(stream, LONGEST), 1):
            yield from kept(record, file, f"{file.path}:value {number}")

    def parquet(file: SourceFile, _: Any, __: Ledger) -> Iterator[Document]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        try:
            with pq.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as table:
                for batch in table.iter_batches(batch_size=ROWS, use_threads=False):
                    for record in batch.to_pylist():
                        row += 1
                        yield from kept(record, file, f"{file.path}:row {row}")
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise OSError(f"{error} (after row {row:,})") from error

    def refuse(file: SourceFile, _: Any, __: Ledger) -> Iterator[Document]:
        ledger.skip(file.path, "conversations are read from .jsonl, .json and .parquet")
        yield from ()

    readers = {"lines": lines, "json": values, "parquet": parquet} | dict.fromkeys(("whole", "page", "table", "warc"), refuse)
    return read(files, ledger, readers)

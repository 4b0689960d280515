"""Documents out of files, one after the other: memory does not grow with the corpus."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.bombs import Measured
from danlu.data.json_values import MISSING, json_values, pick
from danlu.data.ledger import Ledger
from danlu.data.line_blocks import blocks
from danlu.data.sources import SourceFile, format_of, packed
from danlu.data.table import rows
from danlu.data.text import BYTE_ORDER_MARK, NotText, decode
from danlu.data.web import archived, page_text

if TYPE_CHECKING:
    from danlu.data.chat.samples import Sample

LONGEST = 64 << 20
"""Bytes of the longest line, JSON value or whole file that is taken as one document."""
PACKED = 8192
"""Bytes that are asked of a decompressor at a time."""
ROWS = 256
"""Rows of Parquet in memory at a time."""


class Document(NamedTuple):
    """A text and where it came from."""

    text: str
    source: int
    """Which of data.sources."""
    place: str
    """The file, with the line, value or row where there are several in it."""
    record: bytes = b""
    """The line of JSON that it was, without its line end; empty for other kinds."""
    score: float = 0.0
    """How good a stage of curation found it; of copies the best is kept."""
    language: str = ""
    """What a stage of curation found, as an ISO 639-1 code."""
    code: bool = False
    """Whether it is program code, to which rules for prose do not apply."""
    samples: tuple[Sample, ...] = ()
    """Of a conversation, or of each of two answers: its tokens, and which of them are supervised."""


def documents(files: Iterable[SourceFile], ledger: Ledger) -> Iterator[Document]:
    """Yield the documents of the files in order; what cannot be read is counted in the ledger and skipped.

    `.txt .md .py` are one document a file; `.jsonl` one a line; `.json` one for each element of an array, or a single
    object; `.parquet .csv .tsv` one a row; `.html .htm` the main text of the page, `.warc .wet` that of each page in it.
    Blank documents are counted as empty. Nothing is changed in a text but that a byte order mark is taken off. When a
    compressed file breaks off, what came before is kept, and the loss is one bad record.

    Raises:
        UserError: the share of bad records is above the ledger's limit, seen early or at the end.
    """
    return read(files, ledger, {})


def read(files: Iterable[SourceFile], ledger: Ledger, readers: Mapping[str, Reader]) -> Iterator[Any]:
    """As `documents`, with other readers for some kinds of files, and what those yield."""
    readers = {**_READERS, **readers}
    for file in files:
        kind, compression = format_of(file.path) or ("whole", "")  # of an unknown kind is only what was named outright
        ledger.files += file.part is None or file.part[0] == 0
        before = ledger.records
        try:
            if kind == "parquet":
                yield from readers["parquet"](file, None, ledger)
            else:
                with open(file.path, "rb") as raw, decompressed(raw, compression) as stream:
                    ledger.current = raw
                    yield from readers[kind](file, stream, ledger)
        except NotText as error:
            ledger.skip(file.path, str(error))
        except (OSError, EOFError, zlib.error) as error:
            what = "the rest of the file cannot be read" if ledger.records > before else "cannot be read"
            ledger.skip(file.path, f"{what}: {getattr(error, 'strerror', None) or error}")
        finally:
            ledger.current = None
        ledger.disk_bytes_done += file.size
    ledger.check()


def decompressed(raw: io.BufferedReader, compression: str) -> Any:
    """A binary stream with read, read1 and readline."""
    if compression == ".gz":
        return io.BufferedReader(Measured(gzip.GzipFile(fileobj=raw), raw), 1 << 16)
    if compression == ".zst":
        import pyarrow as pa  # tells a broken-off stream from one that ended, which zstandard's reader does not

        return io.BufferedReader(Measured(io.BufferedReader(pa.CompressedInputStream(raw, "zstd"), PACKED), raw), PACKED)
    return raw


def _accept(text: object, file: SourceFile, place: str, ledger: Ledger, record: bytes = b"") -> Iterator[Document]:
    """Yield the document when it is one, else count what it is."""
    if text is MISSING:
        ledger.skip(place, f"no field {file.text!r}")
    elif not isinstance(text, str):
        ledger.skip(place, f"field {file.text!r} is {_name(text)}, not text")
    else:
        try:
            size = len(text) if text.isascii() else len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            ledger.skip(place, f"half of a surrogate pair at character {error.start:,} of field {file.text!r}")
            return
        if size > LONGEST:
            ledger.skip(place, f"{_size(size)} in one document, the longest that is read has {_size(LONGEST)}")
        elif not text or text.isspace():
            ledger.empty += 1
        else:
            ledger.keep(size)
            yield Document(text, file.source, place, record, code=file.code)


def _name(value: object) -> str:
    names = {"NoneType": "null", "dict": "an object", "list": "a list", "bool": "true or false", "bytes": "binary"}
    return names.get(type(value).__name__, "a number" if isinstance(value, int | float) else type(value).__name__)


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _whole(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[Document]:
    data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise NotText(
            f"one document of more than {_size(LONGEST)}, the longest that is read; "
            'cut it into documents, such as one {"text": ...} a line in a .jsonl file'
        )
    yield from _accept(decode(data), file, file.path, ledger)


def _page(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[Document]:
    data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise NotText(f"one page of more than {_size(LONGEST)}, the longest that is read")
    yield from _accept(page_text(data), file, file.path, ledger)


def _archive(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[Document]:
    for address, text in archived(stream, LONGEST):
        place = f"{file.path}:{address}"
        if isinstance(text, NotText):
            ledger.skip(place, str(text))
        else:
            yield from _accept(text, file, place, ledger)


def _table(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[Document]:
    number = 0
    for number, text in rows(stream, file.text, file.path, LONGEST):
        place = f"{file.path}:row {number}"
        if isinstance(text, NotText):
            ledger.skip(place, str(text))
        else:
            yield from _accept(text, file, place, ledger)
    if number == 0:
        ledger.empty += 1


class Numbers:
    """Counts the lines of a file and says where one is; in a part of a file it is the byte that tells."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._line = 0

    def places(self, block: int, starts: Array) -> list[str]:
        """Of the next lines, which begin at `starts` (int64) of a block that begins at this byte of the file."""
        if self._file.part is not None:
            return [f"{self._file.path}:byte {block + start}" for start in starts.tolist()]
        first, self._line = self._line + 1, self._line + len(starts)
        return [f"{self._file.path}:{number}" for number in range(first, self._line + 1)]

    def place(self, start: int) -> str:
        """Of the next line, which begins at this byte of the file."""
        return self.places(start, np.zeros(1, np.int64))[0]


def _lines(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[Document]:
    numbers = Numbers(file)
    for block, start in line_blocks(file, stream):
        at = 0
        while at < len(block):
            end = block.find(b"\n", at) + 1 or len(block)
            yield from line_document(block[at:end], start + at, numbers.place(start + at), file, ledger)
            at = end


def line_blocks(file: SourceFile, stream: Any) -> Iterator[tuple[bytes, int]]:
    """`blocks` of a file. Of a packed one little is read at a time: when it breaks off, what was asked for last is lost."""
    return blocks(stream, LONGEST, file.part, *([PACKED] if packed(file) else []))


def line_document(line: bytes, start: int, place: str, file: SourceFile, ledger: Ledger) -> Iterator[Document]:
    """Yield the document of a line of JSON that begins at byte `start` of its file, or count what it is instead."""
    if line.isspace():
        return
    if len(line) - line.endswith(b"\n") > LONGEST:
        more = "" if line.endswith(b"\n") else " or more"
        ledger.skip(place, f"a line of {_size(len(line))}{more}, the longest that is read has {_size(LONGEST)}")
        return
    line = line.rstrip()
    try:
        try:
            value = _decoder()(line)
        except (ValueError, RecursionError):  # what it is stricter about, and what deserves a reason
            value = json.loads(decode(line, start))
    except NotText as error:
        ledger.skip(place, str(error))
    except json.JSONDecodeError as error:
        ledger.skip(place, f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno:,}")
    except RecursionError:
        ledger.skip(place, "JSON nested too deeply")
    except ValueError as error:  # a number of thousands of digits
        ledger.skip(place, f"not JSON that can be read: {error}")
    else:
        yield from _accept(pick(value, file.text), file, place, ledger, line.removeprefix(BYTE_ORDER_MARK))


@cache
def _decoder() -> Callable[[bytes], Any]:
    from msgspec.json import Decoder

    return Decoder().decode


def _json(file: SourceFile, stream: Any, ledger: Ledger) -> Iterator[Document]:
    number = 0
    try:
        for value in json_values(stream, LONGEST):
            number += 1
            yield from _accept(pick(value, file.text), file, f"{file.path}:value {number}", ledger)
    except NotText as error:
        ledger.skip(f"{file.path}:value {number + 1}", f"{error}; the rest of the file is left out")
        return
    if number == 0:
        ledger.empty += 1


def _parquet(file: SourceFile, _: None, ledger: Ledger) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as table:
            names = table.schema_arrow.names
            root = file.text if file.text in names else file.text.split(".")[0]
            if root not in names:
                ledger.skip(file.path, f"no column {file.text!r}, only {', '.join(names)}", max(1, table.metadata.num_rows))
                return
            for batch in table.iter_batches(batch_size=ROWS, columns=[root], use_threads=False):
                for scalar in batch.column(0):
                    row += 1
                    place = f"{file.path}:row {row}"
                    try:
                        value = scalar.as_py()
                    except UnicodeDecodeError as error:
                        ledger.skip(place, f"not UTF-8 at byte {error.start:,} of the field")
                    else:
                        yield from _accept(pick({root: value}, file.text), file, place, ledger)
            if row == 0:
                ledger.empty += 1
    except pa.ArrowException as error:
        raise OSError(f"{error} (after row {row:,})") from error


Reader = Callable[[SourceFile, Any, Ledger], Iterator[Any]]
_READERS: dict[str, Reader] = {
    "whole": _whole,
    "lines": _lines,
    "json": _json,
    "parquet": _parquet,
    "page": _page,
    "table": _table,
    "warc": _archive,
}

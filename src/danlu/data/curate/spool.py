"""What a pass over documents leaves on the disk for one shard: the kept ones as lines of JSON, the others with the reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.stage import Judged, Rejected
from danlu.data.curate.tally import LANGUAGE, Tally
from danlu.data.ledger import one_line
from danlu.data.line_texts import LineTexts
from danlu.data.read import Document
from danlu.data.sources import SourceFile, packed

LINES, REJECTED, PLACES, FAILED, DONE = "lines.jsonl", "rejected.jsonl", "places.txt", "failed.jsonl", "done.json"
FILES, STARTS, ENDS, LENGTHS = "files.bin", "starts.bin", "ends.bin", "lengths.bin"
_SCORES, _LANGUAGES, _DRAWS, _CODE = "scores.bin", "languages.bin", "draws.bin", "code.bin"
TRIMMED, LEFT = "trimmed", "left.bin"


def line_of(document: Document, text: str | None, field: str) -> bytes:
    """A document as a line of JSON, with the line end.

    The record that was read, where there is one; when the text is no longer `text`, with the new one in its field.
    """
    if not document.record:
        return json.dumps({"text": document.text}, ensure_ascii=False).encode() + b"\n"
    if document.text == text:
        return document.record + b"\n"
    record = json.loads(document.record)
    holder, path = record, [field] if field in record else field.split(".")
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = document.text
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair in another field, which is none of our business
        return json.dumps(record).encode() + b"\n"


def rejection(stage: str, rule: str, value: float | str, place: str, line: bytes, **more: Any) -> bytes:
    """A line of JSON on a document that was left out: where it was, why, and the document itself."""
    why = {"stage": stage, "rule": rule, "value": value, **more, "place": place}
    return _encoder()(why)[:-1] + b',"document":' + line.rstrip(b"\n") + b"}\n"


def draw_key(text: bytes) -> int:
    """Where a text stands in the order in which noise is drawn: not 0, uniform over texts, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"danlu noise").digest(), "little") | 1


def _why(stage: str, rejected: Rejected) -> bytes:
    return _encoder()({"stage": stage, "rule": rejected.rule, "value": rejected.value}) + b"\n"


@cache
def _encoder() -> Callable[[Any], bytes]:
    from msgspec.json import Encoder

    return Encoder().encode


class SpoolWriter:
    """Writes one shard, front to back; its files are complete when `close` has returned."""

    def __init__(self, folder: Path, field: str, files: Sequence[SourceFile]) -> None:
        self._field = field
        self._file_numbers = {file.path: number for number, file in enumerate(files, 1)}
        names = (LINES, REJECTED, PLACES, FAILED, FILES, STARTS, ENDS, LENGTHS, _SCORES, _LANGUAGES, _DRAWS, _CODE)
        self._lines, self._rejected, self._places, self._failed, *self._numbers = (
            (folder / name).open("wb", buffering=1 << 20) for name in names
        )
        self._end = 0
        self.documents = self.text_bytes = 0
        self.tally = Tally()
        self._left_out: list[Document] = []
        """Rejected since the tally was last told."""

    def keep(self, judged: Sequence[Judged], texts: Sequence[bytes]) -> None:
        """Append documents; `texts` are theirs in UTF-8."""
        documents = [one.document for one in judged]
        lines = [line_of(one.document, one.before, self._field) for one in judged]
        self._lines.writelines(lines)
        ends = self._end + np.cumsum([len(line) for line in lines], dtype=np.int64)
        scores = np.array([document.score for document in documents], np.float64)
        languages = np.array([document.language.encode() for document in documents], LANGUAGE)
        draws = np.array(
            [0 if one.failed is None else draw_key(text) for one, text in zip(judged, texts, strict=True)], np.uint64
        )
        code = np.array([document.code for document in documents], bool)
        places = [one_line(document.place) for document in documents]
        self._failed.writelines(_why(*one.failed) for one in judged if one.failed is not None)
        lengths = np.array([len(text) for text in texts], np.int64)
        self._add(np.int32(0), self._end, ends, lengths, scores, languages, draws, code, places)
        self._end = int(ends[-1]) if lines else self._end
        self.tally.read(documents, lengths)
        self._flush()

    def keep_lines(self, texts: LineTexts) -> None:
        """Append lines as they stand; those of a file that is not packed are left where they are."""
        number, start = self._file_numbers[texts.file.path], texts.start
        if packed(texts.file):
            number, start = 0, self._end
            self._lines.write(texts.lines)
            self._end += len(texts.lines)
        places = texts.places if texts.file.path == one_line(texts.file.path) else [one_line(place) for place in texts.places]
        lengths = np.diff(texts.ends, prepend=0)
        count = len(lengths)
        scores, languages, draws = np.zeros(count), np.zeros(count, LANGUAGE), np.zeros(count, np.uint64)
        code = np.full(count, texts.file.code)
        self._add(np.int32(number), start, start + texts.line_ends, lengths, scores, languages, draws, code, places)
        self.tally.seen.count(lengths, languages, scores)

    def _add(
        self, file: np.int32, start: int, ends: Array, lengths: Array, scores: Array, languages: Array, draws: Array,
        code: Array, places: Sequence[str],
    ) -> None:  # fmt: skip
        """Note documents whose lines stand one behind the other from byte `start` of a file on."""
        if not len(ends):
            return
        starts = np.concatenate([[start], ends[:-1]])
        columns = (np.full(len(ends), file), starts, ends, lengths, scores, languages, draws, code)
        for out, array in zip(self._numbers, columns, strict=True):
            out.write(array.data)
        self._places.write(("\n".join(places) + "\n").encode())
        self.documents += len(ends)
        self.text_bytes += int(lengths.sum())

    def reject(self, stage: str, rejected: Rejected, judged: Judged) -> None:
        """Append a document that a stage turned down, as it was when it was read; if it failed softly before, for that."""
        line = line_of(rejected.document._replace(text=judged.before), judged.before, self._field)
        also = {}
        if judged.failed is not None:
            also = {"also": f"{stage}.{rejected.rule}"}
            stage, rejected = judged.failed
        place = one_line(rejected.document.place)
        soft = {"soft": True} if rejected.soft else {}
        self._rejected.write(rejection(stage, rejected.rule, rejected.value, place, line, **soft, **also))
        self._left_out.append(rejected.document)
        size = len(rejected.document.text.encode())
        self.tally.turned_down(f"{stage}.{rejected.rule}", rejected.value, place, rejected.document.text, size)

    def _flush(self) -> None:
        sizes = np.array([len(document.text.encode()) for document in self._left_out], np.int64)
        self.tally.read(self._left_out, sizes)
        self._left_out = []

    def close(self) -> None:
        """Finish the files."""
        self._flush()
        for file in (self._lines, self._rejected, self._places, self._failed, *self._numbers):
            file.close()


class Spool(NamedTuple):
    """A shard that is complete."""

    folder: Path
    counts: dict[str, Any]
    """documents, text_bytes, the tally of what was seen and rejected, and the ledger of what was read."""
    trimmed: bool = False
    """Whether lines and lengths are those without repeated paragraphs, which `trim` has left."""

    @classmethod
    def open(cls, folder: Path) -> Spool:
        return cls(folder, json.loads((folder / DONE).read_text(encoding="utf-8")))

    @property
    def documents(self) -> int:
        """Kept so far."""
        return int(self.counts["documents"])

    def files(self) -> list[Path]:
        """The files that hold the lines; the first is the spool's own, and so is the last of a trimmed one."""
        own = [self.folder / TRIMMED / LINES] if self.trimmed else []
        return [self.folder / LINES, *map(Path, self.counts["files"]), *own]

    def where(self) -> tuple[Array, Array, Array]:
        """The number in `files`, (documents,) int32, and from where to where each line stands in it, (documents,) int64."""
        return (
            np.fromfile(self._columns / FILES, np.int32),
            np.fromfile(self._columns / STARTS, np.int64),
            np.fromfile(self._columns / ENDS, np.int64),
        )

    @property
    def _columns(self) -> Path:
        return self.folder / TRIMMED if self.trimmed else self.folder

    def lengths(self) -> Array:
        """Bytes of the texts, (documents,) int64."""
        return np.fromfile(self._columns / LENGTHS, np.int64)

    def code(self) -> Array:
        """Whether the documents are program code, (documents,) bool."""
        return np.fromfile(self.folder / _CODE, bool)

    def left(self) -> Array:
        """Words left of documents of which next to nothing is left without repeated paragraphs, -1 for others, (documents,)."""
        return np.fromfile(self._columns / LEFT, np.int32) if self.trimmed else np.full(self.documents, -1, np.int32)

    def whole(self) -> Spool:
        """The same with the documents as they were before they were trimmed."""
        return self._replace(trimmed=False)

    def scores(self) -> Array:
        """Scores of the documents, (documents,) float64."""
        return np.fromfile(self.folder / _SCORES, np.float64)

    def languages(self) -> Array:
        """What the language stage found, (documents,) bytes of ASCII; empty where it did not look."""
        return np.fromfile(self.folder / _LANGUAGES, LANGUAGE)

    def draws(self) -> Array:
        """Places in the order in which noise is drawn, (documents,) uint64; 0 for what failed no soft rule."""
        return np.fromfile(self.folder / _DRAWS, np.uint64)

    def failures(self, rows: Array) -> Iterator[dict[str, Any]]:
        """Stage, rule and value of rows, in order, that failed a soft rule."""
        if len(rows):
            lines = (self.folder / FAILED).read_bytes().splitlines()
            for index in np.searchsorted(np.flatnonzero(self.draws()), rows).tolist():
                yield json.loads(lines[index])

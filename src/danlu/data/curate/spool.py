"""What a pass over documents leaves on the disk for one shard: the kept ones as lines of JSON, the others with the reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.stage import Rejected
from danlu.data.ledger import one_line
from danlu.data.line_texts import LineTexts
from danlu.data.read import Document
from danlu.data.sources import SourceFile, packed

LINES, REJECTED, PLACES, DONE = "lines.jsonl", "rejected.jsonl", "places.txt", "done.json"
_FILES, _STARTS, _ENDS, _LENGTHS, _SCORES = "files.bin", "starts.bin", "ends.bin", "lengths.bin", "scores.bin"


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
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def rejection(stage: str, rule: str, value: float | str, place: str, line: bytes, **more: Any) -> bytes:
    """A line of JSON on a document that was left out: where it was, why, and the document itself."""
    why = {"stage": stage, "rule": rule, "value": value, **more, "place": place}
    return json.dumps(why, ensure_ascii=False).encode()[:-1] + b', "document": ' + line.rstrip(b"\n") + b"}\n"


class SpoolWriter:
    """Writes one shard, front to back; its files are complete when `close` has returned."""

    def __init__(self, folder: Path, field: str, files: Sequence[SourceFile]) -> None:
        self._field = field
        self._file_numbers = {file.path: number for number, file in enumerate(files, 1)}
        self._lines, self._rejected, self._places, *self._numbers = (
            (folder / name).open("wb", buffering=1 << 18)
            for name in (LINES, REJECTED, PLACES, _FILES, _STARTS, _ENDS, _LENGTHS, _SCORES)
        )
        self._end = 0
        self.documents = self.text_bytes = 0
        self.rejected: Counter[str] = Counter()
        """By stage and rule."""

    def keep(self, documents: Sequence[Document], before: Sequence[str], texts: Sequence[bytes]) -> None:
        """Append documents. `before` are their texts when they were read, `texts` those of now in UTF-8."""
        lines = [line_of(one, text, self._field) for one, text in zip(documents, before, strict=True)]
        self._lines.writelines(lines)
        ends = self._end + np.cumsum([len(line) for line in lines], dtype=np.int64)
        lengths = np.array([len(text) for text in texts], np.int64)
        scores = np.array([document.score for document in documents], np.float64)
        self._add(0, self._end, ends, lengths, scores, [one_line(document.place) for document in documents])
        self._end = int(ends[-1]) if lines else self._end

    def keep_lines(self, texts: LineTexts) -> None:
        """Append lines as they stand; those of a file that is not packed are left where they are."""
        number, start = self._file_numbers[texts.file.path], texts.start
        if packed(texts.file):
            number, start = 0, self._end
            self._lines.write(texts.lines)
            self._end += len(texts.lines)
        places = texts.places if texts.file.path == one_line(texts.file.path) else [one_line(place) for place in texts.places]
        lengths = np.diff(texts.ends, prepend=0)
        self._add(number, start, start + texts.line_ends, lengths, np.zeros(len(lengths)), places)

    def _add(self, file: int, start: int, ends: Array, lengths: Array, scores: Array, places: Sequence[str]) -> None:
        """Note documents whose lines stand one behind the other from byte `start` of a file on."""
        if not len(ends):
            return
        starts = np.concatenate([[start], ends[:-1]])
        for out, array in zip(self._numbers, (np.full(len(ends), file, np.int32), starts, ends, lengths, scores), strict=True):
            out.write(array.data)
        self._places.write(("\n".join(places) + "\n").encode())
        self.documents += len(ends)
        self.text_bytes += int(lengths.sum())

    def reject(self, stage: str, rejected: Rejected, before: str) -> None:
        """Append a document that a stage turned down, as it was when it was read."""
        line = line_of(rejected.document._replace(text=before), before, self._field)
        place = one_line(rejected.document.place)
        soft = {"soft": True} if rejected.soft else {}
        self._rejected.write(rejection(stage, rejected.rule, rejected.value, place, line, **soft))
        self.rejected[f"{stage}.{rejected.rule}"] += 1

    def close(self) -> None:
        """Finish the files."""
        for file in (self._lines, self._rejected, self._places, *self._numbers):
            file.close()


class Spool(NamedTuple):
    """A shard that is complete."""

    folder: Path
    counts: dict[str, Any]
    """documents, text_bytes, rejected (by stage and rule), and the ledger of what was read."""

    @classmethod
    def open(cls, folder: Path) -> Spool:
        return cls(folder, json.loads((folder / DONE).read_text(encoding="utf-8")))

    @property
    def documents(self) -> int:
        """Kept so far."""
        return int(self.counts["documents"])

    def files(self) -> list[Path]:
        """The files that hold the lines; the first is the spool's own."""
        return [self.folder / LINES, *map(Path, self.counts["files"])]

    def where(self) -> tuple[Array, Array, Array]:
        """The number in `files`, (documents,) int32, and from where to where each line stands in it, (documents,) int64."""
        return (
            np.fromfile(self.folder / _FILES, np.int32),
            np.fromfile(self.folder / _STARTS, np.int64),
            np.fromfile(self.folder / _ENDS, np.int64),
        )

    def lengths(self) -> Array:
        """Bytes of the texts, (documents,) int64."""
        return np.fromfile(self.folder / _LENGTHS, np.int64)

    def scores(self) -> Array:
        """Scores of the documents, (documents,) float64."""
        return np.fromfile(self.folder / _SCORES, np.float64)

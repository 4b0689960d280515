"""Lines read many at a time, against Python's json module and the reader that takes them one by one."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from danlu.data import line_blocks
from danlu.data.json_scan import lines
from danlu.data.ledger import Ledger
from danlu.data.line_texts import LineTexts, line_texts
from danlu.data.read import documents, read
from danlu.data.sources import SourceFile


def scanned(line: bytes, field: str = "text") -> bytes | None:
    """The text that the compiled scanner finds in a line; None: it does not understand it."""
    data = np.frombuffer(line, np.uint8)
    out, ends, stops = np.zeros(len(line), np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64)
    if not lines(data, 0, np.frombuffer(field.encode(), np.uint8), 1 << 20, out, ends, stops):
        return None
    assert stops[0] == len(line)
    return out[: ends[0]].tobytes()


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    max_leaves=8,
)


@given(some.dictionaries(some.text(), VALUES, max_size=4), some.text(min_size=1), some.booleans(), some.booleans())
@settings(max_examples=400, deadline=None)
def test_what_is_understood_is_what_json_says(record: dict[str, Any], text: str, first: bool, ascii_only: bool) -> None:
    record.pop("text", None)
    record = {"text": text, **record} if first else {**record, "text": text}
    line = json.dumps(record, ensure_ascii=ascii_only, separators=(",", ":") if first else None)
    found = scanned(line.encode() + b"\n")
    plain = text[0].isascii() and text[0].isalnum() and not any("\\" in json.dumps(key, ensure_ascii=False) for key in record)
    assert found == text.encode() or (found is None and not (plain and not ascii_only))


@given(some.data())
@settings(max_examples=600, deadline=None)
def test_a_broken_line_is_not_understood(data: some.DataObject) -> None:
    """One byte of a good line is left out, doubled or changed: what is still taken, json takes too, with the same text."""
    nested = {"a": [1, -2.5e3, {"b": None, "c": [[], {}, "x"]}], "f": True}
    good = json.dumps({"id": 7, "text": 'some "text" \n', "more": nested}, ensure_ascii=data.draw(some.booleans())).encode()
    at = data.draw(some.integers(0, len(good) - 1))
    put = data.draw(some.sampled_from([b"", good[at : at + 1] * 2, *(bytes([b]) for b in b'{}[],:"\\eE0123-+.u \tnx')]))
    line = good[:at] + put + good[at + 1 :]
    found = scanned(line + b"\n")
    if found is not None:
        assert found.decode() == json.loads(line)["text"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "\\ud83d"}',
        b'{"text": "x", "text": 3}',
        b'{"te\\u0078t": "x"}',
        b'{"text": "x", "n": 01}',
        b'{"text": "x", "n": NaN}',
        b'{"text": "x", "n": tru}',
        b'{"text": "x",}',
        b'{"text": "x"} y',
        b'{"text": "\t"}',
        b'{"text": "a\xff"}',
        b'{"text": "a\xc3"}',
        b'{"text": "a\xe4\xb8"}',
        b'{"text": "a\xed\xa0\x80"}',
        b'{"text": "a\xe0\x80\x80"}',
        b'{"text": "a\xf0\x80\x80\x80"}',
        b'{"text": "a\xf4\x90\x80\x80"}',
        b'{"text": "\xe3\x80\x80 "}',
        b'{"text": "x"',
        b'["text", "x"]',
        b'{"text": "x", "n": ' + b"[" * 100 + b"]" * 100 + b"}",
        b"",
    ],
)
def test_what_deserves_a_second_look_is_not_taken(line: bytes) -> None:
    assert scanned(line + b"\n") is None


def test_of_two_fields_of_a_name_the_last_counts_and_nested_ones_do_not() -> None:
    assert scanned(b'{"text": "one", "more": {"text": "two"}, "text": "\\u4e2d\\ud83d\\ude00"}\n') == "中😀".encode()


def both(file: SourceFile) -> tuple[list[tuple[str, str]], Ledger]:
    """Texts and places as read many at a time, after the same was seen when they are read one by one."""
    ledgers = Ledger(), Ledger()
    one = [(document.text, document.place) for document in documents([file], ledgers[0])]
    many: list[tuple[str, str]] = []
    content = Path(file.path).read_bytes()
    content = gzip.decompress(content) if file.path.endswith(".gz") else content
    for found in read([file], ledgers[1], {"lines": line_texts}):
        if isinstance(found, LineTexts):
            texts = [part.tobytes().decode() for part in np.split(found.data, found.ends[:-1])]
            many += zip(texts, found.places, strict=True)
            assert found.lines == content[found.start : found.start + len(found.lines)]
            for start, stop, text in zip([0, *found.line_ends[:-1]], found.line_ends, texts, strict=True):
                assert json.loads(bytes(found.lines[start:stop]))["text"] == text
        else:
            many.append((found.text, found.place))
    assert many == one
    assert ledgers[0].as_dict() == ledgers[1].as_dict()
    return many, ledgers[0]


def corpus() -> bytes:
    good = [json.dumps({"n": n, "text": f"text {n} 中文 \n" * (n % 50)}, ensure_ascii=n % 3 == 0).encode() for n in range(400)]
    good[17] = b'{"text": "cut'
    good[18] = b'{"text": "\xff\xfe"}'
    good[30:33] = [b"", b"   ", b'{"text": "ends in blanks"} \r']
    good[100] = b'{"other": 1}'
    return b"\xef\xbb\xbf" + b"\n".join(good)  # the last has no line end


@pytest.mark.parametrize("block", [1, 700, 1 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_many_at_a_time_are_the_same_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, suffix: str
) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK", block)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(gzip.compress(corpus()) if suffix else corpus())
    found, ledger = both(SourceFile(str(path), 0, "text", path.stat().st_size))
    assert len(found) > 380 and ledger.bad == 3 and ledger.empty == 7
    assert found[-1][1] == f"{path}:400"


@pytest.mark.parametrize("count", [2, 7, 100, 5000])
def test_parts_of_a_file_hold_every_line_once(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(corpus())
    size = path.stat().st_size
    whole, ledger = both(SourceFile(str(path), 0, "text", size))
    found: list[tuple[str, str]] = []
    together = Ledger()
    for number in range(count):
        part = size * number // count, size * (number + 1) // count
        texts, one = both(replace(SourceFile(str(path), 0, "text", part[1] - part[0]), part=part))
        found += texts
        together.add(one.as_dict())
    assert [text for text, _ in found] == [text for text, _ in whole]
    assert [getattr(together, name) for name in ("documents", "empty", "bad", "files")] == [
        getattr(ledger, name) for name in ("documents", "empty", "bad", "files")
    ]
    content = path.read_bytes()
    for text, place in found:
        start = int(place.rpartition(" ")[2])
        assert json.loads(content[start:].split(b"\n")[0].decode("utf-8-sig"))["text"] == text


def test_the_parts_of_an_endless_line_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK", 64)
    content = b"first\n" + b"x" * 40_000 + b"\nlast\n"
    size, read = len(content), 0

    class Counting(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            nonlocal read
            line = super().readline(size)
            read += len(line)
            return line

    found = []
    for number in range(20):
        part = size * number // 20, size * (number + 1) // 20
        found += list(line_blocks.blocks(Counting(content), 1000, part, read=64))
    assert found[0] == (b"first\n", 0) and found[-1] == (b"last\n", size - 5)
    assert found[1][1] == 6 and len(found) == 3
    assert read < 2 * size

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from danlu.data import read
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import resolve
from danlu.errors import UserError
from danlu.recipe.data_sections import Source

TEXTS = ["plain", "炼丹 炼丹", "emoji 🐉\r\n", "tab\tand \x00 \x1b control", "end\n\n"]


def run(path: Path, text: str = "text", limit: float = 1.0) -> tuple[list[str], Ledger]:
    ledger = Ledger(limit)
    found = [
        document.text for document in documents(resolve([Source.model_validate({"path": str(path), "text": text})]).files, ledger)
    ]
    assert ledger.documents == len(found)
    assert ledger.text_bytes == sum(len(t.encode()) for t in found)
    return found, ledger


def write(path: Path, data: bytes) -> Path:
    packed = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)(data)
    path.write_bytes(packed)
    return path


def as_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".md", ".py"])
def test_whole_files(tmp_path: Path, kind: str, compression: str) -> None:
    text = "一\r\ntwo \x00\n"
    assert run(write(tmp_path / f"a{kind}{compression}", text.encode()))[0] == [text]
    assert run(write(tmp_path / f"b{kind}{compression}", b"\xef\xbb\xbf" + text.encode()))[0] == [text], "no byte order mark"


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
def test_json_lines(tmp_path: Path, compression: str) -> None:
    data = b"\xef\xbb\xbf" + as_lines(TEXTS).replace(b"\n", b"\r\n") + b"\n  \n" + json.dumps({"text": "last"}).encode()
    found, ledger = run(write(tmp_path / f"a.jsonl{compression}", data))
    assert found == [*TEXTS, "last"]
    assert (ledger.bad, ledger.empty, ledger.files) == (0, 0, 1)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("indent", [None, 2])
def test_json(tmp_path: Path, compression: str, indent: int | None) -> None:
    values = [{"text": text} for text in TEXTS]
    assert run(write(tmp_path / f"a.json{compression}", json.dumps(values, indent=indent).encode()))[0] == TEXTS
    assert run(write(tmp_path / f"o.json{compression}", json.dumps(values[1], indent=indent).encode()))[0] == TEXTS[1:2]
    assert run(write(tmp_path / f"l.json{compression}", as_lines(TEXTS)))[0] == TEXTS, "JSON lines under another name"


@given(
    st.lists(st.text(max_size=50).filter(lambda t: t.strip() != ""), max_size=20),
    st.sampled_from([1, 2, 3, 7, 64]),
    st.booleans(),
)
def test_json_in_any_pieces(tmp_path_factory: pytest.TempPathFactory, texts: list[str], chunk: int, escaped: bool) -> None:
    from danlu.data import json_values

    values = [{"text": text, "more": [1.5, None, True, {"a": "]"}]} for text in texts]

    class Slow:
        """Gives a few bytes at a time."""

        def __init__(self, data: bytes) -> None:
            self.data = data

        def read1(self, count: int) -> bytes:
            count = min(count, chunk)
            head, self.data = self.data[:count], self.data[count:]
            return head

    data = json.dumps(values, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert list(json_values.json_values(Slow(data), 10_000)) == json.loads(data)


@pytest.mark.parametrize("rows", [1, 1000])
def test_parquet(tmp_path: Path, rows: int) -> None:
    texts = [f"{i} {TEXTS[i % 5]}" for i in range(rows)]
    nested = [{"text": text, "n": i} for i, text in enumerate(texts)]
    table = pa.table({"id": range(rows), "text": texts, "doc": nested, "large": pa.array(texts, pa.large_string())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    for field in ("text", "doc.text", "large"):
        assert run(tmp_path / "a.parquet", field)[0] == texts


def test_nested_field_and_dotted_name(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"a": {"b": {"c": "deep"}}},
        {"a.b.c": "flat"},
        {"a": "x"},
        {"a": {"b": None}},
        {"a": {"b": {"c": 1}}},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found, ledger = run(tmp_path / "a.jsonl", "a.b.c")
    assert found == ["deep", "flat"]
    assert ledger.examples == [
        f"{tmp_path}/a.jsonl:3: no field 'a.b.c'",
        f"{tmp_path}/a.jsonl:4: no field 'a.b.c'",
        f"{tmp_path}/a.jsonl:5: field 'a.b.c' is a number, not text",
    ]


BAD_LINES = [
    (b'{"text": "a" "b"}', "not JSON: Expecting ',' delimiter at column 14"),
    (b'{"text": "cut', "not JSON: Unterminated string starting at column 10"),
    (b"{'text': 'x'}", "not JSON"),
    (b'{"other": "x"}', "no field 'text'"),
    (b'["text"]', "no field 'text'"),
    (b'"text"', "no field 'text'"),
    (b'{"text": null}', "field 'text' is null, not text"),
    (b'{"text": ["a"]}', "field 'text' is a list, not text"),
    (b'{"text": {"a": 1}}', "field 'text' is an object, not text"),
    (b'{"text": true}', "field 'text' is true or false, not text"),
    (b'{"text": 1.5}', "field 'text' is a number, not text"),
    (b'{"text": "\\ud83d"}', "half of a surrogate pair at character 0"),
    (b'{"text": "caf\xe9"}', "not UTF-8 at byte "),
    (b"[" * 100_000, "JSON nested too deeply"),
    (b'{"text": ' + b"1" * 5000 + b"}", "not JSON that can be read"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_bad_line_is_counted_and_named_and_the_others_are_kept(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path / "a.jsonl", as_lines(["one"]) + line + b"\n" + as_lines(["  \n", "three"]))
    found, ledger = run(path)
    assert found == ["one", "three"]
    assert (ledger.bad, ledger.empty, ledger.records) == (1, 1, 4)
    assert ledger.examples[0].startswith(f"{path}:2: {reason}")


def test_the_byte_offset_counts_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    data = as_lines(["é" * 10, "b"]) + b'{"text": "caf\xe9"}\n'
    for path in (write(tmp_path / "a.jsonl", data), write(tmp_path / "a.jsonl.gz", data)):
        assert f"not UTF-8 at byte {data.index(0xE9.to_bytes())} (0xe9)".replace(",", "") in run(path)[1].examples[0]
    bom = write(tmp_path / "b.txt", b"\xef\xbb\xbfab\xff")
    assert "not UTF-8 at byte 5 (0xff)" in run(bom)[1].examples[0]
    broken = write(tmp_path / "c.json", b'\xef\xbb\xbf[{"text": "ok"}, {"text": "\xff"}]')
    found, ledger = run(broken)
    assert found == ["ok"]
    assert ledger.examples == [f"{broken}:value 2: not UTF-8 at byte 30 (0xff); the rest of the file is left out"]


@pytest.mark.parametrize(
    ("encoding", "hint"),
    [
        ("gb18030", "it looks like GBK"),
        ("utf-16", "it looks like UTF-16"),
        ("utf-16-le", "it looks like UTF-16"),
        ("latin-1", ""),
    ],
)
def test_other_encodings_are_named(tmp_path: Path, encoding: str, hint: str) -> None:
    text = "un été où les élèves étaient là" if encoding == "latin-1" else "a plain text, 大模型的训练需要很多耐心。" * 5
    if encoding == "utf-16-le":
        text = "only ascii, which is valid UTF-8 too"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    found, ledger = run(path)
    assert (found, ledger.bad) == ([], 1)
    assert hint in ledger.examples[0]
    assert ("looks like" in ledger.examples[0]) == bool(hint)
    assert f"at byte {0 if encoding != 'gb18030' else text.index('大')}" in ledger.examples[0] or encoding in (
        "utf-16-le",
        "latin-1",
    )


BAD_JSON = [
    (b'[{"text": "a"}, {"text": "b" "c"}, {"text": "d"}]', ["a"], "value 2: not JSON: Expecting ',' delimiter at character 29"),
    (b'[{"text": "a"}, {"text": "b"}', ["a", "b"], "value 3: not JSON: the array is not closed"),
    (b'[{"text": "a"}] {"text": "b"}', ["a"], "value 2: more text after the end of the array"),
    (b'{"text": "a"', [], "value 1: not JSON"),
    (b'{"text": "' + b"x" * 300_000, [], "value 1: not JSON: Unterminated string"),
    (b'[{"text": 1}, {"text": "b"}]', ["b"], "value 1: field 'text' is a number, not text"),
    (b"[12, 13]", [], "value 1: no field 'text'"),
    (b"[" * 100_000, [], "value 1: JSON nested too deeply"),
    (b"hello", [], "value 1: not JSON: Expecting value at character 0"),
]


@pytest.mark.parametrize(("data", "kept", "reason"), BAD_JSON)
def test_bad_json(tmp_path: Path, data: bytes, kept: list[str], reason: str) -> None:
    found, ledger = run(write(tmp_path / "a.json", data))
    assert found == kept
    assert ledger.examples[0].startswith(f"{tmp_path}/a.json:{reason}")


def test_empty_files_and_blank_texts_are_empty_not_bad(tmp_path: Path) -> None:
    for name, data in [
        ("a.txt", b""),
        ("b.md", b" \n\t"),
        ("c.json", b""),
        ("d.json", b"[]"),
        ("e.jsonl", b""),
        ("f.txt", "\u3000".encode()),
    ]:
        write(tmp_path / name, data)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "g.parquet")
    found, ledger = run(tmp_path)
    assert (found, ledger.bad, ledger.empty, ledger.files) == ([], 0, 6, 7)


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_broken_off_stream_keeps_what_came_before(tmp_path: Path, compression: str) -> None:
    texts = [os.urandom(2000).hex() for _ in range(500)]
    path = write(tmp_path / f"a.jsonl{compression}", as_lines(texts))
    path.write_bytes(path.read_bytes()[:-5000])
    found, ledger = run(path)
    assert found == texts[: len(found)]
    assert len(found) > 350, "zstandard gives blocks of up to 128 KiB or nothing of them"
    assert ledger.bad == 1
    assert "the rest of the file cannot be read" in ledger.examples[0]
    whole = write(tmp_path / f"b.txt{compression}", "".join(texts).encode())
    whole.write_bytes(whole.read_bytes()[:-5000])
    found, ledger = run(whole)
    assert found == [], "half a document is no document"
    assert ledger.examples[0].startswith(f"{whole}: cannot be read: "), "and nothing came before that would leave a rest"


def test_damaged_and_misnamed_files(tmp_path: Path) -> None:
    good = gzip.compress(as_lines(TEXTS * 100))
    (tmp_path / "a.jsonl.gz").write_bytes(good[:60] + b"\xff\xff\xff\xff" + good[64:])
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip at all")
    (tmp_path / "c.jsonl.zst").write_bytes(b"no zstandard at all")
    (tmp_path / "d.parquet").write_bytes(b"no parquet at all, but long enough to look at")
    (tmp_path / "e.txt").write_bytes(zlib.compress(bytes(range(256)) * 9))
    os.symlink("/proc/self/mem", tmp_path / "f.txt")
    ledger = run(tmp_path)[1]
    assert ledger.bad == ledger.files == 6
    assert [os.path.basename(example.split(":")[0]) for example in ledger.examples] == sorted(os.listdir(tmp_path))
    assert "Input/output error" in ledger.examples[5]
    assert all("\n" not in example for example in ledger.examples)


def test_parquet_with_the_wrong_field_null_and_invalid_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": ["a"] * 30, "n": range(30)}), path)
    found, ledger = run(path)
    assert (found, ledger.bad) == ([], 30)
    assert ledger.examples == [f"{path}: no column 'text', only content, n (30 records)"]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")])
    pq.write_table(pa.table({"text": pa.concat_arrays([broken, pa.array([None, " "])])}), path)
    found, ledger = run(path)
    assert (found, ledger.bad, ledger.empty) == (["a"], 2, 1)
    assert ledger.examples == [f"{path}:row 2: not UTF-8 at byte 0 of the field", f"{path}:row 3: field 'text' is null, not text"]
    pq.write_table(pa.table({"text": range(3)}), path)
    assert run(path)[1].examples[0] == f"{path}:row 1: field 'text' is a number, not text"


def test_too_long_lines_values_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LONGEST", 100_000)
    long = "x" * 300_000
    path = write(tmp_path / "a.jsonl", as_lines(["one", long, "three", "y" * 99_000]))
    found, ledger = run(path)
    assert found == ["one", "three", "y" * 99_000]
    assert ledger.examples == [f"{path}:2: a line of 0.3 MiB, the longest that is read has 0.1 MiB"]
    found, ledger = run(write(tmp_path / "b.json", json.dumps([{"text": "one"}, {"text": long}, {"text": "three"}]).encode()))
    assert found == ["one"]
    assert "a value of more than 100,000 characters; the rest of the file is left out" in ledger.examples[0]
    for name in ("c.txt", "c.txt.gz", "c.txt.zst"):
        ledger = run(write(tmp_path / name, long.encode()))[1]
        assert "one document of more than 0.1 MiB" in ledger.examples[0]
        assert ".jsonl" in ledger.examples[0]
    pq.write_table(pa.table({"text": ["a", long]}), tmp_path / "d.parquet")
    found, ledger = run(tmp_path / "d.parquet")
    assert (found, ledger.bad) == (["a"], 1)


def test_the_limit_on_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", as_lines(["good"] * 98) + b"bad\nbad\n")
    assert run(path, limit=0.02)[1].bad == 2, "a share equal to the limit is let through"
    with pytest.raises(UserError) as caught:
        run(path, limit=0.01)
    assert str(caught.value) == (
        f"2 of 100 records are bad: 2.0%, and data.bad_line_limit is 1.0%; the first: {path}:99: not JSON: "
        "Expecting value at column 1; mend the input, or raise the limit"
    )


def test_far_too_many_bad_records_stop_the_reading_early(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"bad\n" * 5000 + as_lines(["good"] * 10))
    with pytest.raises(UserError, match=r"^1,000 of 1,000 records are bad"):
        run(path, limit=0.5)


def test_twenty_examples_are_kept(tmp_path: Path) -> None:
    ledger = run(write(tmp_path / "a.jsonl", b"bad\n" * 50 + as_lines(["good"])))[1]
    assert (ledger.bad, len(ledger.examples)) == (50, 20)


def test_names_that_are_no_text_are_printable(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\n.txt"
    with open(name, "wb") as file:
        file.write(b"\xff")
    ledger = run(tmp_path)[1]
    assert "\n" not in ledger.examples[0]
    ledger.examples[0].encode("utf-8")


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Peak memory of reading 120 MB in each format, in a process of its own, is far below that."""
    text = "炼丹炉里的火 " * 2000
    line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
    count = 120_000_000 // len(line)
    with (tmp_path / "a.jsonl").open("wb") as plain, zstandard.open(tmp_path / "b.jsonl.zst", "wb") as packed:
        for _ in range(count):
            plain.write(line)
            packed.write(line)
    with (tmp_path / "c.json").open("wb") as array:
        array.write(b"[" + b",".join([line] * count) + b"]")
    with pq.ParquetWriter(tmp_path / "d.parquet", pa.schema([("text", pa.string())])) as writer:
        for number in range(20):
            writer.write_table(pa.table({"text": [f"{number}{i}{text}" for i in range(count // 20)]}))
    script = """
import resource, sys
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import resolve
from danlu.recipe.data_sections import Source
import pyarrow.parquet
files = resolve([Source(path=sys.argv[1])]).files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in documents(files, Ledger()))
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    documents_read, megabytes = result.stdout.split()
    assert int(documents_read) == 3 * count + count // 20 * 20
    assert float(megabytes) < 60

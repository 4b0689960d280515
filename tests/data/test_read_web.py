"""Tables, web pages and archives, whole and broken; every record is kept, empty or bad, and none is lost."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest
import zstandard

from danlu.data import bombs, read
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import SourceFile, format_of

STORY = "The committee met on Tuesday to discuss the repair of the old bridge, and found that the costs had doubled since spring."
CHINESE = "昨天下午，市政府召开会议，讨论旧桥的维修问题。几位代表认为，费用比最初的估算增加了一倍，应当考虑修建新桥。"


def page(story: str, charset: str = "utf-8") -> str:
    return (
        f"<html><head><meta charset={charset}><title>x</title><script>var secret = 1;</script></head><body>"
        "<nav><a href=/>Home</a> <a href=/a>About us</a></nav><article>"
        + f"<p>{story}</p>" * 3
        + "</article><footer>Copyright</footer></body></html>"
    )


def archive(*pages: tuple[str, bytes, str]) -> list[bytes]:
    """Records of a WARC file, written out by hand after ISO 28500."""
    made = []
    for address, body, kind in [("warcinfo", b"software: test\r\n", ""), *pages]:
        http = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() if kind else b""
        block = http + body
        head = (
            f"WARC/1.0\r\nWARC-Type: {'response' if kind else 'warcinfo'}\r\nWARC-Target-URI: {address}\r\n"
            f"WARC-Date: 2024-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:{len(made)}>\r\n"
            f"Content-Type: {'application/http; msgtype=response' if kind else 'application/warc-fields'}\r\n"
            f"Content-Length: {len(block)}\r\n\r\n"
        )
        made.append(head.encode() + block + b"\r\n\r\n")
    return made


def run(path: Path, data: bytes, field: str = "text") -> tuple[list[str], Ledger]:
    path.write_bytes(data)
    ledger = Ledger()
    texts = [document.text for document in documents([SourceFile(str(path), 0, field, len(data))], ledger)]
    assert ledger.records == len(texts) + ledger.empty + ledger.bad
    assert ledger.documents == len(texts)
    return texts, ledger


def test_csv_as_the_standard_writer_makes_it(tmp_path: Path) -> None:
    texts = ["plain", 'with "quotes", commas', "two\nlines", "中文，逗号", " "]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerows([["id", "body"], *([number, text] for number, text in enumerate(texts))])
    for name, data in (("a.csv", out.getvalue().encode()), ("b.csv", out.getvalue().encode("utf-8-sig"))):
        found, ledger = run(tmp_path / name, data, "body")
        assert found == texts[:4] and ledger.empty == 1
    found, _ = run(tmp_path / "c.csv.gz", gzip.compress(out.getvalue().encode()), "body")
    assert found == texts[:4]
    assert run(tmp_path / "d.tsv", b"id\tbody\n1\ta, b\n", "body")[0] == ["a, b"]


def test_bad_rows_of_a_table_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, ledger = run(tmp_path / "a.csv", b"id,text\n1,one\n2\n3,caf\xe9\n4,four,4\n\n5,five\n")
    assert found == ["one", "five"]
    assert [line.partition("row ")[2] for line in ledger.examples] == [
        "3: 1 fields where the header has 2",
        "4: not UTF-8",
        "5: 3 fields where the header has 2",
    ]
    _, ledger = run(tmp_path / "b.csv", b"id,body\n1,one\n")
    assert "no column 'text', only id, body" in ledger.examples[0]
    assert run(tmp_path / "c.csv", b"")[1].empty == 1
    monkeypatch.setattr(read, "LONGEST", 1000)
    found, ledger = run(tmp_path / "d.csv", b'text\none\n"' + b"never closed\n" * 500)
    assert found == ["one"] and "quote is not closed" in ledger.examples[0]
    found, ledger = run(tmp_path / "e.csv", b"text,id\none,1\n" + b"x" * 5000)
    assert found == ["one"] and "a line of more than 1,000 characters" in ledger.examples[0]
    assert csv.field_size_limit() != 1000


@pytest.mark.parametrize("charset", ["utf-8", "gb18030"])
def test_the_main_text_of_a_page(tmp_path: Path, charset: str) -> None:
    found, _ = run(tmp_path / "a.html", page(CHINESE, charset).encode(charset))
    assert found[0].split("\n\n") == [CHINESE] * 3
    found, _ = run(tmp_path / "b.htm.gz", gzip.compress(page(STORY).encode()))
    assert found[0].split("\n\n") == [STORY] * 3


def test_pages_without_text_and_without_markup(tmp_path: Path) -> None:
    assert run(tmp_path / "a.html", b"<html><body><script>x()</script></body></html>")[1].empty == 1
    assert run(tmp_path / "b.html", b"")[1].empty == 1
    _, ledger = run(tmp_path / "c.html", bytes(range(256)) * 20)
    assert "binary data" in ledger.examples[0]
    _, ledger = run(tmp_path / "d.html", b"<html><body>" + b"<Div>" * 300_000 + STORY.encode())  # else it takes hours
    assert "nested more than" in ledger.examples[0]
    found, _ = run(tmp_path / "e.html", page("<div>" * 1500 + STORY + "</div>" * 1500).encode())
    assert STORY in found[0]


PAGES = [
    ("http://a.example/", page(STORY).encode(), "text/html; charset=utf-8"),
    ("http://b.example/", page(CHINESE, "gbk").encode("gbk"), "text/html"),
    ("http://c.example/p.png", b"\x89PNG\r\n", "image/png"),
    ("http://d.example/t", b"Plain words, nothing else.", "text/plain"),
]


@pytest.mark.parametrize("compress", [False, True])
def test_an_archive_has_a_document_a_page(tmp_path: Path, compress: bool) -> None:
    records = archive(*PAGES)
    data = b"".join(gzip.compress(record) for record in records) if compress else b"".join(records)
    path = tmp_path / ("a.warc.gz" if compress else "a.warc")
    path.write_bytes(data)
    ledger = Ledger()
    found = list(documents([SourceFile(str(path), 0, "text", len(data))], ledger))
    assert [document.text.split("\n\n")[0] for document in found] == [STORY, CHINESE, "Plain words, nothing else."]
    assert found[1].place == f"{path}:http://b.example/"
    assert (ledger.bad, ledger.empty) == (0, 0)


def test_an_archive_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    records = archive(*PAGES)
    packed = [gzip.compress(record) for record in records]
    found, ledger = run(tmp_path / "a.warc.gz", b"".join(packed[:2]) + packed[2][: len(packed[2]) // 2])
    assert found[0].split("\n\n")[0] == STORY
    assert ledger.bad == 1 and len(found) == 1 and "the rest of the file" in ledger.examples[0]
    found, ledger = run(tmp_path / "b.warc", b"".join(records)[: len(records[0] + records[1]) + 400])
    assert ledger.bad == 1 and len(found) == 1 and "breaks off" in ledger.examples[0]


def test_what_is_no_archive(tmp_path: Path) -> None:
    for name, data in (
        ("a.warc", b"hello\n" * 100),
        ("b.warc.gz", b"no gzip"),
        ("c.warc", b""),
        ("d.warc.gz", gzip.compress(b"no")),
    ):
        found, ledger = run(tmp_path / name, data)
        assert found == [] and ledger.bad == 1, name


def test_a_bomb_is_stopped_and_what_came_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bombs, "ALWAYS", 1 << 20)
    data = b'{"text": "one"}\n' + b'{"text": "a"}\n' * 2_000_000
    for name, packed in (("a.jsonl.gz", gzip.compress(data)), ("b.jsonl.zst", zstandard.compress(data, 19))):
        assert len(data) > bombs.RATIO * len(packed)
        found, ledger = run(tmp_path / name, packed)
        assert found[0] == "one" and 1 < len(found) < 2_000_001
        assert ledger.bad == 1 and "more than 250 times" in ledger.examples[0]


def test_text_that_packs_well_is_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bombs, "ALWAYS", 1 << 16)
    data = "".join(f'{{"text": "line {number} of a log that repeats itself"}}\n' for number in range(20_000)).encode()
    assert len(run(tmp_path / "a.jsonl.gz", gzip.compress(data))[0]) == 20_000


def test_kinds_by_name() -> None:
    assert format_of("x.WARC.GZ") == ("warc", ".gz") and format_of("x.warc.zst") is None
    assert format_of("a.csv.zst") == ("table", ".zst") and format_of("a.htm") == ("page", "")

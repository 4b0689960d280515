from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from danlu.data import tokenizer
from danlu.data.batches import evaluation_batches
from danlu.data.prepared import Prepared
from danlu.data.shards import ShardWriter
from danlu.data.text_file import text_stream
from danlu.errors import DanluError, UserError

from .conftest import lines, write_jsonl


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_any_file_as_a_stream(prepared: Prepared, tmp_path: Path, name: str) -> None:
    texts = ["one document, 一个文档"] if name == "a.txt" else lines(20)
    path = tmp_path / name
    if name == "a.txt":
        path.write_text(texts[0])
    else:
        write_jsonl(path, texts)
    loaded = tokenizer.load(prepared.tokenizer_path)
    with text_stream(path, loaded) as stream:
        folder = stream.folder
        assert stream.documents == len(texts)
        assert stream.text_bytes == sum(len(text.encode()) for text in texts)
        expected = [token for text in texts for token in [loaded.begin_id, *loaded.encode(text), loaded.end_id]]
        assert stream.window(0, stream.tokens).tolist() == expected
        batches = list(evaluation_batches(stream, sequence_length=16, batch=4, document_mask=False))
        assert sum(int((batch["targets"] != -100).sum()) for batch in batches) == len(expected) - 1
    assert not folder.exists()


@pytest.mark.parametrize("name", ["a.yaml", "a.c", "a.log", "Makefile"])
def test_a_file_of_another_kind_that_is_named_is_plain_text(prepared: Prepared, tmp_path: Path, name: str) -> None:
    text = "炉火: {pure: true}\n\n# 纯青\n"
    (tmp_path / name).write_text(text, encoding="utf-8")
    loaded = tokenizer.load(prepared.tokenizer_path)
    with text_stream(tmp_path / name, loaded) as stream:
        assert (stream.documents, stream.text_bytes) == (1, len(text.encode()))
        assert stream.window(0, stream.tokens).tolist() == [loaded.begin_id, *loaded.encode(text), loaded.end_id]


def test_another_field_and_bad_lines(prepared: Prepared, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"content": "a"}\n' * 9 + "bad\n")
    loaded = tokenizer.load(prepared.tokenizer_path)
    said: list[str] = []
    with text_stream(path, loaded, text="content", bad_line_limit=0.1, report=said.append) as stream:
        assert stream.documents == 9
    assert said == [f"bad: {path}:10: not JSON: Expecting value at column 1"]
    with pytest.raises(UserError, match="1 of 10 records are bad"), text_stream(path, loaded, text="content"):
        pass


def test_a_full_disk(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.txt").write_text("text")
    loaded = tokenizer.load(prepared.tokenizer_path)
    monkeypatch.setattr(ShardWriter, "add", full)
    with pytest.raises(DanluError, match="No space left on device; make room there"), text_stream(tmp_path / "a.txt", loaded):
        pass


def test_errors(prepared: Prepared, tmp_path: Path) -> None:
    loaded = tokenizer.load(prepared.tokenizer_path)
    (tmp_path / "a.txt").write_text("  ")
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "a.log.gz").write_bytes(b"x")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("x")
    for name, message in (
        ("a.txt", "no text in 1 file"),
        ("gone.txt", "^'.*gone.txt': there is no such"),
        ("a.png", "not UTF-8 at byte 0"),
        ("a.log.gz", "not a kind"),
        ("logs", "no file that can be read; ignored: 1 .log"),
        ("logs/*.log", "no file that can be read; ignored: 1 .log"),
    ):
        with pytest.raises(UserError, match=message), text_stream(tmp_path / name, loaded):
            pass

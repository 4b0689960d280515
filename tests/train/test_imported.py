"""Imported weights and a tokenizer that is theirs, or is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from danlu.data.prepared import Prepared
from danlu.train.imported import tokenizer_warning


def test_the_very_tokenizer_of_the_weights(prepared: Prepared, tmp_path: Path) -> None:
    shutil.copy(prepared.tokenizer_path, tmp_path / "tokenizer.json")
    assert tokenizer_warning(tmp_path, prepared, prepared.vocab_size) is None
    assert tokenizer_warning(tmp_path, prepared, prepared.vocab_size + 128) is None, "rows that fill up"


@pytest.mark.parametrize("rows", [0, 200])
def test_another_tokenizer_beside_the_weights(prepared: Prepared, tmp_path: Path, rows: int) -> None:
    (tmp_path / "tokenizer.json").write_bytes(prepared.tokenizer_path.read_bytes() + b"\n")
    warning = tokenizer_warning(tmp_path, prepared, prepared.vocab_size + rows)
    assert warning is not None and len(warning.splitlines()) == 1
    assert warning.startswith(f"the run's tokenizer is not {tmp_path / 'tokenizer.json'}, ")
    assert warning.endswith(f"give data.tokenizer.path: {tmp_path}")


def test_no_tokenizer_beside_the_weights(prepared: Prepared, tmp_path: Path) -> None:
    assert tokenizer_warning(tmp_path, prepared, prepared.vocab_size) is None
    warning = tokenizer_warning(tmp_path, prepared, prepared.vocab_size + 200)
    assert warning is not None and len(warning.splitlines()) == 1
    assert f"has {prepared.vocab_size} tokens and the weights in {tmp_path} have {prepared.vocab_size + 200} rows" in warning

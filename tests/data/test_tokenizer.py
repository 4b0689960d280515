from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from danlu.data import tokenizer
from danlu.data.tokenizer import BEGIN, END, PAD, Tokenizer
from danlu.errors import UserError

from .conftest import lines

TRICKY = [
    "",
    " ",
    "plain English, and more of it.",
    "道可道，非常道。名可名，非常名。",
    "繁體與简体，𠮷野家",
    "🐉👩‍👩‍👧‍👦🇨🇳 emoji",
    "def f(x):\n\treturn {'a': [x ** 2]}  # 注释\r\n",
    "\x00\x01\x1b[0m\x7f\x85\u2028\ufeff\ufffd",
    "  leading\n\n\n   trailing   ",
    "\r\n\r\r\n",
    "a\u0301 is not \u00e1",
    f"{BEGIN} in the text {END}{END} {PAD}",
    "<|begin|",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder, tokenizer.train(lines(200), 340), BEGIN, END)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Tokenizer:
    return tokenizer.load(folder)


def test_what_a_trained_tokenizer_is(folder: Path, trained: Tokenizer) -> None:
    assert trained.vocab_size == 340
    assert (trained.begin_id, trained.end_id) == (0, 1)
    assert trained.fingerprint == hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert trained.decode([0, *trained.encode("a"), 1]) == f"{BEGIN}a{END}"
    assert trained.decode([0, *trained.encode("a"), 1], skip_special_tokens=True) == "a"
    assert len(trained.encode("quick brown")) < len("quick brown"), "pairs are merged"


@pytest.mark.parametrize("text", TRICKY)
def test_any_text_comes_back(trained: Tokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.decode(ids, skip_special_tokens=True) == text
    assert not set(ids) & {0, 1, 2}, "special tokens in a text are plain text"


@given(text=st.text() | st.text(alphabet=list("<|>begindpa 炉\r\n\x00🐉")))
def test_any_text_at_all_comes_back(trained: Tokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert not set(ids) & {0, 1, 2}


def test_half_a_surrogate_pair_is_no_text(trained: Tokenizer) -> None:
    with pytest.raises(UserError, match="the text is not UTF-8 at character 2"):
        trained.encode("ab\udc80")


@given(texts=st.lists(st.text(), max_size=8))
def test_a_batch_is_its_texts(trained: Tokenizer, texts: list[str]) -> None:
    assert [ids.tolist() for ids in trained.encode_batch(texts)] == [trained.encode(text) for text in texts]


def test_long_texts_are_cut_without_loss(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(lines(300)) + "炉" * 3000
    whole = trained.encode(text)
    monkeypatch.setattr(tokenizer, "PIECE", 1000)
    monkeypatch.setattr(tokenizer, "AT_ONCE", 3000)
    cut = trained.encode(text)
    assert trained.decode(cut) == text
    assert abs(len(cut) - len(whole)) < 0.01 * len(whole)
    batch = trained.encode_batch(["short", text, "", text[:5000]])
    assert [trained.decode(ids.tolist()) for ids in batch] == ["short", text, "", text[:5000]]
    pieces = tokenizer._pieces(text)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 1000
    assert sum(piece.endswith("\n") for piece in pieces) >= 25


def test_training_is_deterministic_across_processes() -> None:
    script = "from tests.data.conftest import lines\nfrom danlu.data.tokenizer import train\nimport hashlib\n"
    script += "print(hashlib.sha256(train(lines(200), 500)).hexdigest())"
    here = hashlib.sha256(tokenizer.train(lines(200), 500)).hexdigest()
    for hash_seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": hash_seed},
        )
        assert result.stdout.strip() == here


def test_little_text_makes_fewer_tokens(tmp_path: Path) -> None:
    tokenizer.save(tmp_path, tokenizer.train(["ab ab"], 5000), BEGIN, END)
    few = tokenizer.load(tmp_path)
    assert 256 + 3 < few.vocab_size < 270
    assert few.decode(few.encode("炼丹")) == "炼丹"


def library(path: Path, bos: bool = False, metaspace: bool = False) -> Library:
    """A tokenizer in the manner of published ones: ids with a hole, a template, truncation and padding set."""
    vocabulary = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Library(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if metaspace:
        made = Library(models.BPE(vocab={"▁": 0, "x": 1, "y": 2, "\n": 3, "<unk>": 4}, merges=[], unk_token="<unk>"))
        made.normalizer = normalizers.Prepend("▁")
    made.add_special_tokens(["<s>", "</s>", "<pad>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", made.token_to_id("<s>")), ("</s>", made.token_to_id("</s>"))]
    )
    made.enable_truncation(4)
    made.enable_padding(length=8, pad_token="<pad>", pad_id=made.token_to_id("<pad>"))
    made.save(str(path))
    return made


SETTINGS: list[tuple[dict[str, dict[str, Any]], str | None, str]] = [
    ({"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}}, "<s>", "</s>"),
    ({"tokenizer_config.json": {"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}}}, "<s>", "</s>"),
    ({"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}}, None, "</s>"),
    ({"tokenizer_config.json": {"bos_token": None, "eos_token": "</s>"}, "config.json": {"bos_token_id": 256}}, None, "</s>"),
    ({"config.json": {"bos_token_id": 256, "eos_token_id": 257}}, "<s>", "</s>"),
    ({"config.json": {"eos_token_id": [257, 258]}}, None, "</s>"),
    ({"special_tokens_map.json": {"eos_token": "</s>", "bos_token": {"content": "<s>"}}}, "<s>", "</s>"),
    ({"tokenizer_config.json": {"eos_token": None}, "config.json": {"eos_token_id": 258}}, None, "<pad>"),
]


@pytest.mark.parametrize(("files", "begin", "end"), SETTINGS)
def test_begin_and_end_as_the_files_beside_say(tmp_path: Path, files: dict[str, Any], begin: str | None, end: str) -> None:
    made = library(tmp_path / "tokenizer.json")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = tokenizer.load(path)
        assert (loaded.begin, loaded.end) == (begin, end)
        assert loaded.begin_id == (None if begin is None else made.token_to_id(begin))
        assert loaded.end_id == made.token_to_id(end)
    overridden = tokenizer.load(tmp_path, begin="</s>", end="<s>")
    assert (overridden.begin_id, overridden.end_id) == (257, 256)


def test_a_loaded_tokenizer_adds_cuts_and_fills_nothing(tmp_path: Path) -> None:
    library(tmp_path / "tokenizer.json")
    loaded = tokenizer.load(tmp_path, end="</s>")
    text = "longer than four tokens <s> </s>"
    assert len(loaded.encode(text)) == len(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.vocab_size == 259


def test_holes_in_the_ids_count(tmp_path: Path) -> None:
    Library(models.WordLevel(vocab={"a": 0, "b": 9, "</s>": 5}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.load(tmp_path, end="</s>").vocab_size == 10


def test_texts_are_not_cut_for_a_tokenizer_that_marks_their_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PIECE", 4)
    made = library(tmp_path / "tokenizer.json", metaspace=True)
    made.no_truncation()
    made.no_padding()
    text = "xy\nxy\nxy\n"
    assert tokenizer.load(tmp_path, end="</s>").encode(text) == made.encode(text, add_special_tokens=False).ids


def test_the_same_ids_as_transformers_in_both_directions(folder: Path, trained: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(folder)
    assert (other.bos_token_id, other.eos_token_id, other.pad_token_id) == (0, 1, 2)
    for text in lines(20) + [text for text in TRICKY if "<|" not in text]:
        assert other(text, add_special_tokens=False)["input_ids"] == trained.encode(text)
    other.save_pretrained(tmp_path)
    again = tokenizer.load(tmp_path)
    assert (again.begin_id, again.end_id) == (0, 1)
    assert again.encode(TRICKY[11]) == trained.encode(TRICKY[11])


def test_a_bare_file_of_danlu_is_known_by_its_tokens(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path / "mine.json")
    assert tokenizer.load(tmp_path / "mine.json").begin_id == 0


def test_errors(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"data\.tokenizer\.path: there is no file .*absent"):
        tokenizer.load(tmp_path / "absent")
    with pytest.raises(UserError, match=r"there is no file .*tokenizer\.json"):
        tokenizer.load(tmp_path)
    library(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"no token is known to end a document; name one in data\.tokenizer\.end"):
        tokenizer.load(tmp_path)
    with pytest.raises(UserError, match=r"there is no token '<eos>'"):
        tokenizer.load(tmp_path, end="<eos>")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json: cannot be read"):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    for bad in (b"", b"{}", b"[1]", b"\xff\xfe", (folder / "tokenizer.json").read_bytes()[:-500]):
        (tmp_path / "tokenizer.json").write_bytes(bad)
        with pytest.raises(UserError, match=r"tokenizer\.json: ") as caught:
            tokenizer.load(tmp_path, end="</s>")
        assert "\n" not in str(caught.value)

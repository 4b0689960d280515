from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu.data import prepare as module
from danlu.data import tokenizer
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.data.split import place
from danlu.data.stream import TokenStream
from danlu.errors import UserError

from .conftest import lines, recipe, write_jsonl


def texts(made: Prepared, stream: TokenStream) -> list[str]:
    """The documents of a stream, decoded, with the frame around each checked."""
    loaded = tokenizer.load(made.tokenizer_path)
    starts = [*stream.document_starts(0, stream.tokens).tolist(), stream.tokens]
    found = []
    for start, stop in itertools.pairwise(starts):
        ids = stream.window(start, stop - start).tolist()
        assert ids[-1] == made.end_id
        if made.begin_id is not None:
            assert ids[0] == made.begin_id
            ids = ids[1:]
        found.append(loaded.decode(ids[:-1]))
    return found


def quiet(line: str) -> None:
    assert "\n" not in line


def test_every_document_comes_back_on_the_side_its_hash_says(prepared: Prepared) -> None:
    train, validation = texts(prepared, prepared.train), texts(prepared, prepared.validation)
    everything = lines(300)
    assert train == [text for text in everything if place(text).split >= 0.1]
    assert validation == [text for text in everything if place(text).split < 0.1]
    assert prepared.train.text_bytes == sum(len(text.encode()) for text in train)
    assert prepared.validation.text_bytes == sum(len(text.encode()) for text in validation)


def test_the_split_is_stable_when_sources_grow(prepared: Prepared, corpus: Path, tmp_path: Path) -> None:
    more = write_jsonl(tmp_path / "more.jsonl", lines(500))
    made = prepare(recipe([{"path": str(more)}]), tmp_path / "data", quiet)
    assert set(texts(prepared, prepared.validation)) <= set(texts(made, made.validation))
    assert not set(texts(made, made.train)) & set(texts(made, made.validation))


def test_the_tokenizer_sees_no_held_out_text(tmp_path: Path) -> None:
    everything = lines(300)
    marked = [text + (" zzzzqqqqwwww" * 5 if place(text + " zzzzqqqqwwww" * 5).split < 0.3 else "") for text in everything]
    source = write_jsonl(tmp_path / "a.jsonl", marked)
    made = prepare(recipe([{"path": str(source)}], validation_fraction=0.3), tmp_path / "data", quiet)
    assert sum("zzzzqqqq" in text for text in texts(made, made.validation)) > 30
    assert "zz" not in tokenizer.load(made.tokenizer_path)._tokenizer.get_vocab()


def test_two_preparations_are_the_same_to_the_byte(prepared: Prepared, corpus: Path, tmp_path: Path) -> None:
    prepare(recipe([{"path": str(corpus)}], shard_tokens=4000), tmp_path / "data", quiet)
    names = sorted(path.name for path in prepared.folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "data").iterdir())
    for name in names:
        assert (prepared.folder / name).read_bytes() == (tmp_path / "data" / name).read_bytes()


def test_weights_are_passes_and_validation_is_read_once(tmp_path: Path) -> None:
    sources = []
    for name, weight in (("half", 0.5), ("once", 1.0), ("more", 2.3)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {text}" for text in lines(300, 5)])
        sources.append({"path": str(path), "weight": weight})
    made = prepare(recipe(sources), tmp_path / "data", quiet)
    train, validation = Counter(texts(made, made.train)), Counter(texts(made, made.validation))
    assert set(validation.values()) == {1}
    for name, low, high, expected in (("half", 0, 1, 0.5), ("once", 1, 1, 1.0), ("more", 2, 3, 2.3)):
        own = [f"{name} {text}" for text in lines(300, 5) if place(f"{name} {text}").split >= 0.1]
        counts = [train[text] for text in own]
        assert {low, high} == set(counts)
        assert abs(sum(counts) / len(own) - expected) < 0.12
        assert sum(f"{name} {text}" in validation for text in lines(300, 5)) == 300 - len(own)
    counted = made.index["report"]
    assert counted["documents"] == 900
    assert counted["left_out_by_weight"] == sum(1 for text in lines(300, 5) if place(f"half {text}").split >= 0.1) - sum(
        train[f"half {text}"] for text in lines(300, 5)
    )


def test_documents_in_are_kept_empty_or_bad(source: Path, tmp_path: Path) -> None:
    folder, source = source, source / "a.jsonl"
    write_jsonl(source, [*lines(200), " ", ""])
    with source.open("a") as file:
        file.write('{"no": 1}\nbroken\n')
    (folder / "b.txt").write_text("a file")
    (folder / "c.bin").write_bytes(b"1")
    said: list[str] = []
    made = prepare(recipe([{"path": str(folder)}], bad_line_limit=0.05), tmp_path / "data", said.append)
    counted = made.index["report"]
    assert (counted["records"], counted["documents"], counted["empty"], counted["bad"]) == (205, 201, 2, 2)
    assert counted["ignored"] == {".bin": 1}
    assert made.train.documents + made.validation.documents == 201
    assert counted["examples"] == [f"{source}:203: no field 'text'", f"{source}:204: not JSON: Expecting value at column 1"]
    assert "sources: 2 files" in said[0]
    assert "ignored: 1 .bin" in said[0]
    assert any("201 documents" in line and "2 empty, 2 bad records" in line for line in said)
    assert any(line.startswith("prepared: ") and "bytes a token" in line for line in said)


def test_progress_is_said_while_it_runs(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danlu.data.progress.EVERY", 0.0)
    said: list[str] = []
    prepare(recipe([{"path": str(corpus)}]), tmp_path / "data", said.append)
    progress = [line for line in said if line.startswith("tokenising: ")]
    assert len(progress) > 10
    assert "300 documents" in progress[-1]
    assert "/s, 0 bad" in progress[-1]


def test_a_tokenizer_that_is_loaded(prepared: Prepared, corpus: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy(prepared.tokenizer_path, own)
    (own / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "bos_token": None, "chat_template": "kept"}))
    settings = recipe([{"path": str(corpus)}], None, tokenizer={"path": str(own)})
    made = prepare(settings, tmp_path / "data", quiet)
    assert (made.begin_id, made.end_id) == (None, prepared.end_id)
    assert made.index["tokenizer"]["origin"] == str(own / "tokenizer.json")
    assert texts(made, made.train) == texts(prepared, prepared.train)
    assert made.train.tokens == prepared.train.tokens - prepared.train.documents
    assert made.tokenizer_path.read_bytes() == prepared.tokenizer_path.read_bytes()
    assert json.loads((made.folder / "tokenizer_config.json").read_text())["chat_template"] == "kept"
    assert tokenizer.load(made.tokenizer_path).begin_id is None
    assert prepare(settings, tmp_path / "data", quiet).train.tokens == made.train.tokens
    overridden = recipe([{"path": str(corpus)}], None, tokenizer={"path": str(own), "begin": "<|pad|>"})
    again = prepare(overridden, tmp_path / "other", quiet)
    assert again.begin_id == tokenizer.load(again.tokenizer_path).begin_id == 2
    (own / "tokenizer.json").write_bytes(prepared.tokenizer_path.read_bytes() + b"\n")
    with pytest.raises(UserError, match="was prepared with another tokenizer than"):
        prepare(settings, tmp_path / "data", quiet)
    shutil.rmtree(own)
    assert prepare(settings, tmp_path / "data", quiet).begin_id is None, "the folder has its own copy"


def test_a_tokenizer_that_loses_text_is_named(corpus: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(vocab={"<unk>": 0, "</s>": 1, "the": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    said: list[str] = []
    prepare(
        recipe([{"path": str(corpus)}], None, tokenizer={"path": str(tmp_path), "end": "</s>"}), tmp_path / "data", said.append
    )
    assert "note: 32 of the first 32 documents do not come back unchanged from this tokenizer" in said


def test_wide_ids_take_four_bytes(corpus: Path, prepared: Prepared, tmp_path: Path) -> None:
    content = json.loads(prepared.tokenizer_path.read_text())
    content["model"]["vocab"]["far"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    made = prepare(recipe([{"path": str(corpus)}], None, tokenizer={"path": str(tmp_path)}), tmp_path / "data", quiet)
    assert made.vocab_size > 65_536
    assert made.train.window(0, 5).dtype == np.uint32
    assert texts(made, made.train) == texts(prepared, prepared.train)


def test_reuse(prepared: Prepared, corpus: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(prepared.folder, tmp_path / "data"))
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    same = recipe([{"path": str(corpus)}], shard_tokens=4000, sequence_length=16, document_mask=False, workers=3)
    said: list[str] = []
    assert prepare(same, folder, said.append).train.tokens == prepared.train.tokens
    assert len(said) == 1
    assert "already prepared, reused" in said[0]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_default_that_is_spelled_out_is_no_difference(corpus: Path, tmp_path: Path) -> None:
    sources = [{"path": str(corpus)}]
    prepare(recipe(sources, None), tmp_path / "data", quiet)
    prepare(recipe(sources, None, tokenizer={"train": {"vocab_size": 8192}}), tmp_path / "data", quiet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 350}, "data.tokenizer.train.vocab_size was 400, now 350"),
        ({"validation_fraction": 0.2}, "data.validation_fraction was 0.1, now 0.2"),
        ({"shard_tokens": 5000}, "data.shard_tokens was 4000, now 5000"),
        ({"weight": 2.0}, "data.sources[0].weight was 1.0, now 2.0"),
        ({"exclude": ["a"]}, "data.sources[0].exclude was [], now ['a']"),
        ({"tokenizer": {"path": "x"}, "vocab_size": None}, "data.tokenizer.path was None, now 'x'"),
    ],
)
def test_a_folder_of_other_settings(prepared: Prepared, corpus: Path, change: dict[str, Any], message: str) -> None:
    source = {"path": str(corpus)} | {key: change.pop(key) for key in ("weight", "exclude") if key in change}
    with pytest.raises(UserError, match="was prepared with other settings: ") as caught:
        prepare(recipe([source], **({"shard_tokens": 4000} | change)), prepared.folder, quiet)
    assert message in str(caught.value)
    assert "use another run folder, or delete the folder and run `danlu prepare` again" in str(caught.value)


def test_a_folder_of_another_version(prepared: Prepared, corpus: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(prepared.folder, tmp_path / "data"))
    index = json.loads((folder / "index.json").read_text())
    index["data"]["unheard_of"] = 1
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="was prepared by another version of danlu"):
        prepare(recipe([{"path": str(corpus)}], shard_tokens=4000), folder, quiet)


def test_sources_that_changed_since_are_said(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", lines(300))
    settings = recipe([{"path": str(source)}])
    made = prepare(settings, tmp_path / "data", quiet)
    write_jsonl(source, lines(301))
    said: list[str] = []
    assert prepare(settings, tmp_path / "data", said.append).train.tokens == made.train.tokens
    assert "warning: data.sources[0] changed since: 1 file of " in said[1]
    source.unlink()
    said.clear()
    assert prepare(settings, tmp_path / "data", said.append).train.tokens == made.train.tokens
    assert "warning: the sources cannot be compared" in said[1]


def test_reuse_still_checks_the_model_and_the_limits(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", lines(300))
    with source.open("a") as file:
        file.write("broken\n")
    sources = [{"path": str(source)}]
    made = prepare(recipe(sources), tmp_path / "data", quiet)
    with pytest.raises(UserError, match=r"the tokenizer's vocabulary \(\d+\) is larger than model\.vocab_size \(300\)"):
        prepare(recipe(sources, model={"preset": "llama-5m", "vocab_size": 300}), tmp_path / "data", quiet)
    with pytest.raises(UserError, match="less than one sample"):
        prepare(recipe(sources, sequence_length=10**6), tmp_path / "data", quiet)
    with pytest.raises(UserError, match=r"1 of 301 records are bad"):
        prepare(recipe(sources, bad_line_limit=0.0), tmp_path / "data", quiet)
    assert made.train.tokens > 0


def expect(message: str, tmp_path: Path, **settings: Any) -> None:
    sources = settings.pop("sources", [{"path": str(tmp_path / "source")}])
    with pytest.raises(UserError) as caught:
        prepare(recipe(sources, **settings), tmp_path / "data", quiet)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("data")] == [], "nothing is left behind"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def test_an_empty_corpus(source: Path, tmp_path: Path) -> None:
    expect("no file that can be read", tmp_path)
    (source / "a.txt").write_text(" \n")
    (source / "b.jsonl").write_text('{"text": ""}\n\n')
    expect("data.sources: no text in 2 files (2 empty, 0 bad records)", tmp_path)
    expect("data.sources: no text in 2 files (2 empty, 0 bad records)", tmp_path, validation_fraction=0.0)


def test_a_corpus_of_bad_records_only(source: Path, tmp_path: Path) -> None:
    (source / "a.jsonl").write_text("broken\n" * 3)
    expect("3 of 3 records are bad: 100.0%", tmp_path)
    expect("no text in 1 file (0 empty, 3 bad records; the first bad one: ", tmp_path, bad_line_limit=1.0)


def test_too_many_bad_records(source: Path, tmp_path: Path) -> None:
    write_jsonl(source / "a.jsonl", lines(100))
    with (source / "a.jsonl").open("a") as file:
        file.write("broken\n" * 3)
    expect("3 of 103 records are bad: 2.9%, and data.bad_line_limit is 1.0%; the first: ", tmp_path)
    assert prepare(recipe([{"path": str(source)}], bad_line_limit=0.03), tmp_path / "data", quiet).index["report"]["bad"] == 3


def test_a_corpus_shorter_than_one_sample(source: Path, tmp_path: Path) -> None:
    (source / "a.txt").write_text("abc")
    expect(
        "the training text has 5 tokens, less than one sample (data.sequence_length + 1 = 33)", tmp_path, validation_fraction=0.0
    )
    made = prepare(recipe([{"path": str(source)}], validation_fraction=0.0, sequence_length=4), tmp_path / "data", quiet)
    assert (made.train.tokens, made.validation.tokens) == (5, 0)


def test_no_document_is_held_out(source: Path, tmp_path: Path) -> None:
    (source / "a.txt").write_text("炼丹 " * 500)
    expect("data.validation_fraction 0.1 holds out none of the 1 documents; cut the text into several documents", tmp_path)
    write_jsonl(source / "b.jsonl", lines(20))
    smallest = min(place(text).split for text in ["炼丹 " * 500, *lines(20)])
    expect(f"holds out none of the 21 documents; raise it (above {smallest:.4f} one", tmp_path, validation_fraction=smallest / 2)
    made = prepare(recipe([{"path": str(source)}], validation_fraction=smallest * 1.01), tmp_path / "data", quiet)
    assert made.validation.documents == 1, "the advice works"


def test_all_documents_are_held_out(source: Path, tmp_path: Path) -> None:
    write_jsonl(source / "a.jsonl", lines(3))
    expect("data.validation_fraction 0.9999 holds out all of the 3 documents", tmp_path, validation_fraction=0.9999)


def test_more_tokens_than_the_model_has_rows(source: Path, tmp_path: Path, prepared: Prepared) -> None:
    write_jsonl(source / "a.jsonl", lines(100))
    model = {"preset": "llama-5m", "vocab_size": 350}
    expect("data.tokenizer.train.vocab_size (400) is larger than model.vocab_size (350)", tmp_path, model=model)
    loaded = {"path": str(prepared.tokenizer_path)}
    small = {"preset": "llama-5m", "vocab_size": 300}
    expect("is larger than model.vocab_size (300)", tmp_path, vocab_size=None, tokenizer=loaded, model=small)


def test_an_unreadable_source_and_a_missing_tokenizer(source: Path, tmp_path: Path) -> None:
    write_jsonl(source / "a.jsonl", lines(100))
    expect("data.sources[0].path: ", tmp_path, sources=[{"path": str(tmp_path / "gone")}])
    expect("data.tokenizer.path: there is no file", tmp_path, vocab_size=None, tokenizer={"path": str(tmp_path / "gone")})


def test_a_folder_that_holds_something_else(source: Path, tmp_path: Path) -> None:
    write_jsonl(source / "a.jsonl", lines(100))
    for name in ("folder", "file"):
        place_taken = tmp_path / name
        if name == "folder":
            place_taken.mkdir()
            (place_taken / "mine.txt").write_text("precious")
        else:
            place_taken.write_text("precious")
        with pytest.raises(UserError, match="exists and is no prepared data"):
            prepare(recipe([{"path": str(source)}]), place_taken, quiet)
    assert (tmp_path / "folder" / "mine.txt").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    assert prepare(recipe([{"path": str(source)}]), tmp_path / "empty", quiet).train.documents > 0


def test_an_unlistable_folder_is_a_bad_record(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(source / "a.jsonl", lines(300))
    listing = module.resolve

    def with_a_shut_folder(sources: Any) -> Any:
        found = listing(sources)
        found.unreadable.append(("shut", "Permission denied"))
        return found

    monkeypatch.setattr(module, "resolve", with_a_shut_folder)
    made = prepare(recipe([{"path": str(source)}]), tmp_path / "data", quiet)
    assert made.index["report"]["examples"] == ["shut: Permission denied"]
    expect_bad = recipe([{"path": str(source)}], bad_line_limit=0.0)
    with pytest.raises(UserError, match="1 of 301 records are bad"):
        prepare(expect_bad, tmp_path / "other", quiet)


def test_copies_are_left_out_before_anything_is_counted(tmp_path: Path) -> None:
    everything = lines(200)
    source = write_jsonl(tmp_path / "a.jsonl", everything + [text.upper() for text in everything[:50]])
    settings = {"curate": {"dedup": {"threshold": 0.8}, "workers": 1}}
    said: list[str] = []
    made = prepare(recipe([{"path": str(source)}], **settings), tmp_path / "data", said.append)
    assert made.train.documents + made.validation.documents == made.index["curation"]["kept"]
    assert made.index["curation"]["rules"]["dedup.near"] >= 50
    assert any(line.startswith("curated: 250 records in") for line in said)
    settings["curate"]["workers"] = 2
    assert prepare(recipe([{"path": str(source)}], **settings), tmp_path / "data", quiet).train.tokens == made.train.tokens
    with pytest.raises(UserError, match=r"data\.curate"):
        prepare(recipe([{"path": str(source)}]), tmp_path / "data", quiet)

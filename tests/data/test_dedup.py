"""Near-duplicate removal, against exact Jaccard by brute force over sets of words that share no code with it."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu.data.curate import job
from danlu.data.curate.job import Curated, Settings, curate
from danlu.data.curate.shard import first_pass
from danlu.data.curate.stage import Rejected
from danlu.data.dedup.plan import Plan, plan_of, rows_for
from danlu.data.dedup.sketch import Sketcher, back_to_back
from danlu.data.read import Document
from danlu.data.sources import resolve
from danlu.errors import DanluError, UserError
from danlu.recipe.curate_sections import DedupSection
from danlu.recipe.data_sections import Source

from .conftest import write_jsonl

HAN = "\u4e00-\u9fff"
PLAN = Plan(0.8, 112, rows_for(0.8, 112), 5, "estimate")


def quiet(line: str) -> None:
    assert "\n" not in line


def words(text: str) -> list[str]:
    return re.findall(rf"[{HAN}]|(?:(?![{HAN}])[^\W_])+", text.lower())


def jaccard(left: str, right: str) -> float:
    a, b = ({tuple(w[i : i + 5]) for i in range(max(1, len(w) - 4))} for w in (words(left), words(right)))
    return len(a & b) / len(a | b)


def english(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(count))


def chinese(rng: random.Random, count: int) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x5200)) + ("，" if rng.random() < 0.08 else "") for _ in range(count))


def edited(text: str, rng: random.Random, rate: float) -> str:
    parts = re.findall(rf"[{HAN}]|[a-z]+|\W+", text)
    pool = [part for part in parts if part[0].isalnum()]
    return "".join(rng.choice(pool) if part[0].isalnum() and rng.random() < rate else part for part in parts)


def write_texts(texts: list[str], folder: Path) -> None:
    """Files of a hundred lines of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"n": number, "text": text}, ensure_ascii=False) + "\n" for number, text in enumerate(texts)]
    for start in range(0, len(rows), 100):
        (folder / f"{start:06d}.jsonl").write_text("".join(rows[start : start + 100]), encoding="utf-8")


def run(texts: list[str], place: Path, **settings: Any) -> tuple[list[int], dict[int, dict[str, Any]], Curated]:
    """Numbers of the kept texts, what is said of the others by number, and the whole result."""
    source = place / "in"
    write_texts(texts, source)
    done = curate(
        resolve([Source(path=str(source))]), place / "out", Settings(plan=settings.pop("plan", PLAN), **settings), quiet
    )
    return *outcome(done), done


def outcome(done: Curated) -> tuple[list[int], dict[int, dict[str, Any]]]:
    kept = [json.loads(line)["n"] for file in done.files() for line in Path(file.path).read_bytes().splitlines()]
    left = [
        json.loads(line) for path in sorted((done.folder / "rejected").glob("*.jsonl")) for line in path.read_bytes().splitlines()
    ]
    return kept, {one["document"]["n"]: one for one in left}


@pytest.mark.parametrize("write", [english, chinese], ids=["english", "chinese"])
def test_recall_and_precision_by_true_jaccard(write: Any, tmp_path: Path) -> None:
    rng = random.Random(7)
    texts: list[str] = []
    pairs = []
    for _ in range(500):
        text = write(rng, rng.randint(60, 300))
        copy = edited(text, rng, rng.choice([0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2]))
        pairs.append((len(texts), jaccard(text, copy)))
        texts += [text, copy]
    kept, left, done = run(texts, tmp_path)
    together = {first: first in left or first + 1 in left for first, _ in pairs}
    near = [together[first] for first, alike in pairs if alike >= 0.85]
    fairly = [together[first] for first, alike in pairs if alike >= 0.8]
    assert len(near) > 80 and sum(near) / len(near) >= 0.99
    assert len(fairly) > len(near) and sum(fairly) / len(fairly) >= 0.985
    for first, alike in pairs:
        assert alike >= 0.5 or not together[first]
    for number, why in left.items():
        assert abs(number - json.loads(line_at(done, why["kept"]))["n"]) == 1  # never another family
    assert sorted([*kept, *left]) == list(range(len(texts)))


def line_at(done: Curated, name: str) -> str:
    path, number = name.split(":")
    return (done.folder / path).read_text("utf-8").splitlines()[int(number) - 1]


def test_exact_checking_parts_at_the_threshold(tmp_path: Path) -> None:
    rng = random.Random(3)
    texts, pairs = [], []
    for _ in range(300):
        text = english(rng, 150)
        copy = edited(text, rng, 0.03)
        pairs.append((len(texts), jaccard(text, copy)))
        texts += [text, copy]
    _, left, _ = run(texts, tmp_path, plan=Plan(0.8, 112, 8, 5, "exact"))
    wrong = [alike for first, alike in pairs if alike < 0.8 and (first in left or first + 1 in left)]
    found = [first in left or first + 1 in left for first, alike in pairs if alike >= 0.8]
    assert not wrong
    assert len([alike for _, alike in pairs if 0.7 < alike < 0.8]) > 30
    assert sum(found) / len(found) > 0.95


def test_the_estimate_is_unbiased_with_the_spread_of_minhash() -> None:
    rng = random.Random(1)
    sketcher = Sketcher(PLAN)
    errors = []
    for _ in range(300):
        text = english(rng, 200)
        copy = edited(text, rng, rng.uniform(0, 0.15))
        _, low = sketcher.sketch(*back_to_back([text.encode(), copy.encode()]))
        exact = jaccard(text, copy)
        estimate = ((low[0] == low[1]).mean() - 1 / 256) / (1 - 1 / 256)
        errors.append((estimate - exact) / max(0.02, (exact * (1 - exact) / 112) ** 0.5))
    assert abs(np.mean(errors)) < 0.25
    assert 0.8 < np.std(errors) < 1.2


FORMATS = [
    lambda text: text,
    lambda text: re.sub(r"\s+", "\r\n  ", text),
    lambda text: text.upper(),
    lambda text: text.replace(" ", ", "),
    lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    lambda text: "\ufeff" + text.replace("e", "e\u0301") + "\n\n",
    lambda text: "* " + text.replace("，", "。\n* "),
    lambda text: "\u200b".join(text.split(" ")) if re.search(f"[{HAN}]", text) else text.replace(" ", "\u00a0"),
]


@pytest.mark.parametrize("write", [english, chinese], ids=["english", "chinese"])
def test_copies_that_differ_in_format_alone_are_found(write: Any, tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = [change(text) for text in [write(rng, 80) for _ in range(20)] for change in FORMATS]
    kept, _, done = run(texts, tmp_path)
    assert len(kept) == 20
    assert done.report["rules"].keys() <= {"dedup.exact", "dedup.near"}


def test_short_texts_share_no_signature(tmp_path: Path) -> None:
    """Texts of fewer words than a shingle, unspaced Chinese above all, are copies only when they are the same."""
    texts = [
        "你好",
        "你好吗",
        "谢谢",
        "再见",
        "早上好",
        "好",
        "炉",
        "ok",
        "no",
        "a b",
        "a b c",
        "...",
        "!!!",
        "—",
        "🐉",
        "🐲",
        "１",
        "2",
    ]
    texts += [chinese(random.Random(n), 30) for n in range(30)]
    texts += ["这是一句没有空格的话，说的是第" + chr(0x4E00 + n) + "件事" for n in range(5)]
    kept, _, _ = run([*texts, "谢谢", "..."], tmp_path)
    assert set(range(len(texts) - 5)) <= set(kept)
    assert not {len(texts), len(texts) + 1} & set(kept)


def test_the_best_of_a_group_is_kept(tmp_path: Path) -> None:
    rng = random.Random(2)
    text = english(rng, 200)
    longer = text + " and some more words at its end"
    kept, left, _ = run([text, longer, text, english(rng, 200)], tmp_path)
    assert kept == [1, 3]
    assert left[0]["rule"] == left[2]["rule"] == "near" and left[0]["kept"] == "kept/00000.jsonl:1"
    assert left[0]["value"] == pytest.approx(jaccard(text, longer), abs=0.12)


class _Scores:
    name = "scores"

    def apply(self, documents: Any) -> list[Document | Rejected]:
        out: list[Document | Rejected] = []
        for document in documents:
            if "bad" in document.text:
                out.append(Rejected(document, "word", "bad", soft=True))
            else:
                out.append(document._replace(score=1.0 if "good" in document.text else 0.0, text=document.text.strip()))
        return out

    def __repr__(self) -> str:
        return "_Scores()"


def test_stages_score_change_and_reject(tmp_path: Path) -> None:
    text = english(random.Random(9), 200)
    texts = ["  " + text + " longest of all ", text + " good", "bad " + text, "other"]
    kept, left, done = run(texts, tmp_path, stages=(_Scores(),))
    assert kept == [1, 3]
    assert left[2] == {
        "stage": "scores", "rule": "word", "value": "bad", "soft": True, "place": left[2]["place"],
        "document": {"n": 2, "text": texts[2]},
    }  # fmt: skip
    assert left[0]["document"]["text"] == texts[0].strip()
    assert done.report["rules"] == {"dedup.near": 1, "scores.word": 1}


def content(done: Curated) -> dict[str, bytes]:
    return {str(path.relative_to(done.folder)): path.read_bytes() for path in sorted(done.folder.rglob("*")) if path.is_file()}


def family(count: int) -> list[str]:
    rng = random.Random(11)
    found = []
    for _ in range(count):
        text = english(rng, 100) if rng.random() < 0.5 else chinese(rng, 100)
        found += [text, edited(text, rng, 0.01)] if rng.random() < 0.4 else [text]
    rng.shuffle(found)
    return found


def test_the_result_does_not_depend_on_processes_memory_or_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = family(500)
    _, _, alone = run(texts, tmp_path)
    source = resolve([Source(path=str(tmp_path / "in"))])
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)  # a shard for every file
    many = curate(source, tmp_path / "many", Settings(plan=PLAN, workers=1), quiet)
    several = curate(source, tmp_path / "several", Settings(plan=PLAN, workers=3, memory=1), quiet)
    assert content(many) == content(several)
    assert len(list((many.folder / "kept").iterdir())) > 5
    assert outcome(many)[0] == outcome(alone)[0]
    assert {n: why["rule"] for n, why in outcome(many)[1].items()} == {n: why["rule"] for n, why in outcome(alone)[1].items()}


def test_parts_of_a_sort_find_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = family(300)
    expected = run(texts, tmp_path / "whole")[0]
    monkeypatch.setattr("danlu.data.dedup.groups.LEAST_MEMORY", 1)
    assert run(texts, tmp_path / "parts", memory=1000)[0] == expected


def test_an_interrupted_job_goes_on_with_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = family(400)
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)
    _, _, whole = run(texts, tmp_path)
    source = resolve([Source(path=str(tmp_path / "in"))])
    calls = []

    def breaking(shard: Any, *arguments: Any) -> None:
        calls.append(shard.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        first_pass(shard, *arguments)

    monkeypatch.setattr(job, "first_pass", breaking)
    with pytest.raises(KeyboardInterrupt):
        curate(source, tmp_path / "again", Settings(plan=PLAN), quiet)
    assert not (tmp_path / "again").exists()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "again.partial" / "work").glob("*/done.json")}
    assert len(stamps) == 2

    def going_on(shard: Any, *arguments: Any) -> None:
        first_pass(shard, *arguments)
        assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())

    monkeypatch.setattr(job, "first_pass", going_on)
    said: list[str] = []
    done = curate(source, tmp_path / "again", Settings(plan=PLAN), said.append)
    assert any("going on" in line for line in said)
    assert content(done) == content(whole)
    with pytest.raises(UserError, match="other settings"):
        curate(source, tmp_path / "again", Settings(plan=Plan(0.7, 112, 7, 5, "estimate")), quiet)
    assert curate(source, tmp_path / "again", Settings(plan=PLAN, workers=2), quiet).report == done.report


def test_hostile_input_is_counted_to_the_last_record(tmp_path: Path) -> None:
    rng = random.Random(4)
    lines = [json.dumps({"text": english(rng, 50)}).encode() for _ in range(20)]
    lines += [
        b'{"text": null}', b'{"text": {"a": 1}}', b'{"text": "\xff\xfe"}', b'{"text": "cut', b'{"other": "x"}', b"[" * 100_000,
        b'{"text": "\\ud800"}', b'{"text": "   "}', b'{"text": ""}', b'{"text": "nul \\u0000 inside"}', b"\xef\xbb\xbf{}",
        b"null", '{"text": "é\u0301𐀀", "text": "the last of two counts"}'.encode(), b'{"text": "x", "n": NaN}', b"",
        b'{"text": "y"} trailing',
    ]  # fmt: skip
    place = tmp_path / "in"
    place.mkdir()
    (place / "a.jsonl").write_bytes(b"\n".join(lines))
    (place / "b.txt").write_bytes(b"\xb0\xa1" * 50)
    (place / "c.parquet").write_bytes(b"PAR1 not at all")
    (place / "d.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    (place / "loop").symlink_to(place)
    done = curate(resolve([Source(path=str(place))]), tmp_path / "out", Settings(plan=PLAN, bad_line_limit=1.0), quiet)
    report = done.report
    assert report["records"] == len([line for line in lines if line]) + 3
    assert report["records"] == report["kept"] + report["rejected"] + report["empty"] + report["unreadable"]
    assert (report["kept"], report["empty"], report["unreadable"]) == (23, 2, 13)
    with pytest.raises(UserError, match="are bad"):
        curate(resolve([Source(path=str(place))]), tmp_path / "strict", Settings(plan=PLAN), quiet)


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    listing = resolve([Source(path=str(tmp_path / "a.jsonl"))])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(UserError, match="holds something else"):
        curate(listing, tmp_path / "out", Settings(plan=PLAN), quiet)
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one", "two"])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(job, "first_pass", full)
    with pytest.raises(DanluError, match="disk is full"):
        curate(resolve([Source(path=str(tmp_path / "a.jsonl"))]), tmp_path / "out", Settings(plan=PLAN), quiet)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9])
def test_rows_are_as_many_as_still_find_a_pair_at_the_threshold(threshold: float) -> None:
    rows = rows_for(threshold, 112)
    more = [r for r in range(rows + 1, 113) if 112 % r == 0]

    def chance(r: int) -> float:
        return 1 - (1 - threshold**r) ** (2 * 112 / r)

    assert chance(rows) >= 0.985
    assert all(chance(r) < 0.985 for r in more)
    if threshold == 0.8:
        assert rows == 8


@pytest.mark.parametrize("write", [english, chinese], ids=["english", "chinese"])
def test_threshold_1_takes_the_same_words_in_the_same_order_and_nothing_else(write: Any, tmp_path: Path) -> None:
    rng = random.Random(6)
    texts = []
    for count in [1, 3, 5, 60, 200] * 8:
        text = write(rng, count)
        parts = re.findall(rf"[{HAN}]|[a-z]+", text)
        other_order = (" " if write is english else "").join(reversed(parts))
        texts += [text, rng.choice(FORMATS)(text), edited(text, rng, 0.02), other_order, text + text]
    texts += ["...", "。", "...", "🐉", "🐉"]
    rng.shuffle(texts)
    plan = plan_of(DedupSection(threshold=1))
    assert plan.permutations == 0
    kept, left, done = run(texts, tmp_path, plan=plan)

    def words_of(number: int) -> tuple[str, ...]:
        plain = (
            unicodedata.normalize("NFKD", texts[number]).replace("\u0301", "").replace("\u200b", " " if write is english else "")
        )
        return tuple(words(plain)) or (texts[number],)

    groups: dict[tuple[str, ...], list[int]] = {}
    for number in range(len(texts)):
        groups.setdefault(words_of(number), []).append(number)
    best = [max(group, key=lambda number: (len(texts[number].encode()), -number)) for group in groups.values()]
    assert sorted(best) == sorted(kept) and len(left) > 40
    for number, why in left.items():
        assert words_of(json.loads(line_at(done, why["kept"]))["n"]) == words_of(number)
        assert why["value"] == 1.0 and (why["rule"] == "exact") == (
            json.loads(line_at(done, why["kept"]))["text"] == texts[number]
        )
    assert {why["rule"] for why in left.values()} == {"exact", "near"}


def test_every_pair_of_bands_has_few_hashes_in_common() -> None:
    near = [set(range(8 * band, 8 * band + 8)) for band in range(14)]
    far = [{band + 14 * row for row in range(8)} for band in range(14)]
    assert set().union(*far) == set(range(112))
    assert max(len(a & b) for a, b in itertools.product(near, far)) == 1


def test_a_chain_of_neighbours_is_not_one_group(tmp_path: Path) -> None:
    """Each text is alike to the next, the ends have nothing in common: what goes must be alike to what stays."""
    rng = random.Random(8)
    parts = [english(rng, 10) for _ in range(60)]
    texts = [" ".join(parts[start : start + 20]) for start in range(40)]
    assert jaccard(texts[0], texts[1]) > 0.85 and jaccard(texts[0], texts[39]) == 0
    kept, left, _ = run(texts, tmp_path)
    numbers = {f"kept/00000.jsonl:{line}": number for line, number in enumerate(kept, 1)}
    # Three parts further the Jaccard is 17/23: what stays may stand for three neighbours on either side, and no more.
    assert len(kept) >= len(texts) / 7
    for number, why in left.items():
        assert jaccard(texts[number], texts[numbers[why["kept"]]]) > 0.55


def test_sources_that_change_meanwhile_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, ["one", "two"])

    def changing(*arguments: Any) -> None:
        first_pass(*arguments)
        os.utime(path, (1, 1))

    monkeypatch.setattr(job, "first_pass", changing)
    with pytest.raises(UserError, match="changed while"):
        curate(resolve([Source(path=str(path))]), tmp_path / "out", Settings(plan=PLAN), quiet)


def test_a_large_file_is_worked_on_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(texts := family(300), tmp_path / "many")
    whole = tmp_path / "one" / "a.jsonl"
    whole.parent.mkdir()
    whole.write_bytes(b"".join(path.read_bytes() for path in sorted((tmp_path / "many").iterdir())))
    expected = outcome(curate(resolve([Source(path=str(tmp_path / "many"))]), tmp_path / "expected", Settings(plan=PLAN), quiet))
    monkeypatch.setattr("danlu.data.curate.shard.PART_BYTES", whole.stat().st_size // 7)
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)
    done = curate(resolve([Source(path=str(whole))]), tmp_path / "out", Settings(plan=PLAN, workers=2), quiet)
    kept, left = outcome(done)
    assert len(list((done.folder / "kept").iterdir())) == 7
    assert kept == expected[0] and left.keys() == expected[1].keys()
    for number, why in left.items():
        line = whole.read_bytes()[int(why["place"].rpartition("byte ")[2]) :]
        assert json.loads(line.split(b"\n")[0])["text"] == texts[number]

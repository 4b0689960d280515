"""Repeated paragraphs, against the same done in plain Python over lists of words that share no code with it."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from danlu.data.curate import paragraphs
from danlu.data.curate.job import Curated, Settings, curate
from danlu.data.curate.paragraphs import Paragraphs, trim_pass, without
from danlu.data.curate.stage import Rejected
from danlu.data.dedup.plan import Plan, rows_for
from danlu.data.read import Document
from danlu.data.sources import resolve
from danlu.recipe.data_sections import Source

from .conftest import write_jsonl

PLAN = Plan(0.8, 112, rows_for(0.8, 112), 5, "estimate")
LEAST, MOST = 8, 3
HAN = "\u4e00-\u9fff"


def words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(rf"[{HAN}]|(?:(?![{HAN}])[^\W_])+", text.lower()))


def blocks(lines: list[str]) -> list[list[int]]:
    """The numbers of the lines of each paragraph."""
    found: list[list[int]] = [[]]
    for number, line in enumerate(lines):
        if words(line):
            found[-1].append(number)
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def occurrences(text: str) -> list[tuple[tuple[str, ...], list[int]]]:
    """The words and the lines of every line and paragraph that is long enough, those of a paragraph before itself."""
    lines = text.split("\n")
    found = []
    for block in blocks(lines):
        found += [(words(lines[number]), [number]) for number in block]
        if len(block) > 1:
            found.append((words("\n".join(lines[number] for number in block)), block))
    return [one for one in found if len(one[0]) >= LEAST]


def expected(texts: dict[int, str], soft: set[int], code: set[int]) -> dict[int, list[str]]:
    """For every text the lines with words that are left of it. texts: what is left when copies are gone, in order."""
    counts: Counter[tuple[str, ...]] = Counter()
    for number, text in texts.items():
        if number not in soft | code:
            counts.update({one for one, _ in occurrences(text)})
    seen: set[tuple[str, ...]] = set()
    left = {}
    for number, text in texts.items():
        gone: set[int] = set()
        for one, lines in occurrences(text) if number not in code else []:
            if counts[one] > MOST:
                if number in soft or one in seen:
                    gone.update(lines)
                else:
                    seen.add(one)
        left[number] = [line for at, line in enumerate(text.split("\n")) if at not in gone and words(line)]
    return left


def english(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(count))


def chinese(rng: random.Random, count: int) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x5200)) + ("，" if rng.random() < 0.08 else "") for _ in range(count))


def corpus(count: int) -> list[str]:
    """Texts of their own lines and of a pool of lines and paragraphs, some of which come often and in another format."""
    rng = random.Random(5)
    pool = []
    for number in range(24):
        write = english if number % 2 else chinese
        lines = [write(rng, rng.choice([3, 7, 8, 9, 20])) for _ in range(rng.choice([1, 1, 2, 3]))]
        pool.append("\n".join(lines))
    pool.append("\n".join([*pool[1].split("\n")[:1], english(rng, 12)]))  # shares a line with another
    texts = []
    for _ in range(count):
        parts = [rng.choice([english, chinese])(rng, rng.randint(5, 40)) for _ in range(rng.choice([0, 1, 3, 6]))]
        for one in rng.choices(pool, weights=[3 / (n + 1) for n in range(len(pool))], k=rng.choice([0, 1, 1, 2])):
            parts.append(rng.choice([one, one, one.upper(), f"* {one}。", one.replace(" ", "  ")]))
        rng.shuffle(parts)
        text = rng.choice(["\n\n", "\n", "\n---\n", "\r\n \r\n"]).join(parts)
        if not words(text):
            text = english(rng, 4)
        texts.append(text + rng.choice(["", "\n"]) + rng.choice(["", " dull"]) * (rng.random() < 0.4))
    return texts


class Dull:
    """Turns down softly what has the word."""

    name = "style"

    def apply(self, documents: Any) -> list[Document | Rejected]:
        return [Rejected(one, "dull", 1.0, soft=True) if one.text.endswith("dull") else one for one in documents]

    def __repr__(self) -> str:
        return "Dull()"


def write(texts: list[str], folder: Path) -> list[Source]:
    """Lines of JSON, and every seventh in a file of its own as code."""
    (folder / "lines").mkdir(parents=True)
    (folder / "code").mkdir()
    rows = [json.dumps({"n": n, "a": {"text": text}}, ensure_ascii=False) + "\n" for n, text in enumerate(texts) if n % 7]
    for start in range(0, len(rows), 100):
        (folder / "lines" / f"{start:06d}.jsonl").write_text("".join(rows[start : start + 100]), encoding="utf-8")
    for number in range(0, len(texts), 7):
        (folder / "code" / f"{number:06d}.py").write_bytes(texts[number].encode())
    return [Source(path=str(folder / "lines"), text="a.text"), Source(path=str(folder / "code"))]


TEXTS = corpus(700)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write(TEXTS, tmp_path_factory.mktemp("sources"))


def settings(**more: Any) -> Settings:
    return Settings(**{"stages": (Dull(),), "plan": PLAN, "paragraphs": Paragraphs(LEAST, MOST), "noise_ratio": 0.07} | more)


def run(sources: list[Source], out: Path, **more: Any) -> Curated:
    return curate(resolve(sources), out, settings(**more), lambda line: None)


def rows(done: Curated, part: str) -> list[dict[str, Any]]:
    paths = sorted((done.folder / part).glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def by_number(done: Curated, part: str) -> dict[int, tuple[str, dict[str, Any]]]:
    """Text and row of what is in a part, by number; code is found again by what it says."""
    numbers = {text: number for number, text in enumerate(TEXTS) if number % 7 == 0}
    found = {}
    for row in rows(done, part):
        document = row.get("document", row)
        text = document["a"]["text"] if "a" in document else document["text"]
        found[document["n"] if "n" in document else numbers[text]] = text, row
    return found


@pytest.fixture(scope="module")
def done(sources: list[Source], tmp_path_factory: pytest.TempPathFactory) -> Curated:
    return run(sources, tmp_path_factory.mktemp("done") / "out")


def content(done: Curated) -> dict[str, bytes]:
    return {str(path.relative_to(done.folder)): path.read_bytes() for path in sorted(done.folder.rglob("*")) if path.is_file()}


def test_what_is_left_is_what_plain_python_leaves(done: Curated) -> None:
    kept, noise, rejected = (by_number(done, part) for part in ("kept", "noise", "rejected"))
    assert sorted([*kept, *noise, *rejected]) == list(range(len(TEXTS)))
    copies = {number for number, (_, why) in rejected.items() if why["stage"] == "dedup"}
    also = {number for number, (_, why) in rejected.items() if "also" in why}
    order = [n for n in range(len(TEXTS)) if n % 7] + list(range(0, len(TEXTS), 7))
    soft, code = {n for n in order if TEXTS[n].endswith("dull")}, set(range(0, len(TEXTS), 7))
    left = expected({n: TEXTS[n] for n in order if n not in copies}, soft, code)
    trimmed = {n for n, lines in left.items() if lines != [line for line in TEXTS[n].split("\n") if words(line)]}
    spent = {n for n in trimmed if len(words("\n".join(left[n]))) < LEAST}
    assert len(trimmed - spent - soft) > 50 and len(spent - soft) > 20 and len(spent & soft) > 3 and trimmed & set(noise)
    assert {n for n, (_, why) in rejected.items() if why["stage"] == "paragraphs"} == spent - soft
    assert spent & soft <= also and not spent & set(noise)
    for number, (text, _) in (kept | noise).items():
        assert [line for line in text.split("\n") if words(line)] == left[number]
        assert number in trimmed or text == TEXTS[number]
    for number, (text, why) in rejected.items():
        assert text == TEXTS[number]
        if number in spent - soft:
            assert (why["rule"], why["value"]) == ("nothing_left", len(words("\n".join(left[number]))))
        if why["stage"] == "dedup" and "kept" in why:
            place, line = why["kept"].split(":")
            assert (done.folder / place).read_text("utf-8").splitlines()[int(line) - 1]
    # Whatever was taken out stands somewhere else in what is kept.
    stands = {one for text, _ in kept.values() for one in [*map(words, text.split("\n"))]}
    for number in trimmed - soft:
        gone = {words(line) for line in TEXTS[number].split("\n")} - {words(line) for line in left[number]}
        assert {one for one in gone if len(one) >= LEAST} <= stands


def test_the_sums_are_right(done: Curated) -> None:
    report = done.report
    assert report["records"] == report["kept"] + report["rejected"] == len(TEXTS)
    first, *stages, last = report["waterfall"]
    assert [row["stage"] for row in stages] == ["style", "dedup", "paragraphs"]
    for figure in ("documents", "bytes"):
        assert first[figure] + sum(row[figure] for row in stages) == last[figure]
    texts = [text for part in ("kept", "noise") for text, _ in by_number(done, part).values()]
    assert last["bytes"] == sum(len(text.encode()) for text in texts)
    changed = sum(text != TEXTS[n] for part in ("kept", "noise") for n, (text, _) in by_number(done, part).items())
    assert stages[2]["changed"] == changed > 0
    noise = report["noise"]
    sizes = [sum(len(text.encode()) for text, _ in by_number(done, part).values()) for part in ("noise", "kept")]
    assert [noise["tokens"], noise["clean_tokens"]] == sizes and abs(noise["achieved"] - 0.07) < 0.005


def test_neither_processes_nor_shards_nor_a_break_change_it(
    sources: list[Source], done: Curated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)
    monkeypatch.setattr("danlu.data.dedup.repeats.LEAST_MEMORY", 1)
    calls = []

    def breaking(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return trim_pass(*arguments)

    monkeypatch.setattr(paragraphs, "trim_pass", breaking)
    with pytest.raises(KeyboardInterrupt):
        run(sources, tmp_path / "many", memory=1000)
    monkeypatch.setattr(paragraphs, "trim_pass", trim_pass)
    many = run(sources, tmp_path / "many", memory=1000)
    several = run(sources, tmp_path / "several", workers=2)
    assert content(many) == content(several)
    assert len(list((many.folder / "kept").iterdir())) > 5
    for part in ("kept", "noise", "rejected"):
        assert {n: text for n, (text, _) in by_number(many, part).items()} == {
            n: text for n, (text, _) in by_number(done, part).items()
        }


@pytest.mark.parametrize(
    ("text", "gone", "left"),
    [
        ("a\nb\nc", {1}, "a\nc"),
        ("a\n\nb\n\nc", {2}, "a\n\nc"),
        ("a\n\nb\nc\n", {2}, "a\n\nc\n"),
        ("a\n\nb\n", {2}, "a"),
        ("b\n\n\n a", {0}, " a"),
        ("a\n\n\nb", {0, 3}, ""),
        ("a\n\n\nc\nb\n\nd", {4}, "a\n\n\nc\n\nd"),
    ],
)
def test_no_empty_lines_are_left_doubled(text: str, gone: set[int], left: str) -> None:
    assert without(text, gone) == left


def test_without_repeats_nothing_changes(tmp_path: Path) -> None:
    """What one document says again and again is no repeat, and neither is what as many say as may."""
    texts = [english(random.Random(n), 30) + "\n\nthe end" for n in range(20)] + ["好\n好\n好"]
    refrain, allowed = "\n\n".join([english(random.Random(20), 20)] * (MOST + 2)), chinese(random.Random(21), 40)
    texts += [english(random.Random(22), 400) + "\n\n" + refrain]
    texts += [chinese(random.Random(30 + n), 400) + "\n" + allowed for n in range(MOST)]
    write_jsonl(tmp_path / "in.jsonl", texts)
    sources = [Source(path=str(tmp_path / "in.jsonl"))]
    with_it = run(sources, tmp_path / "with", stages=(), noise_ratio=0.0)
    without_it = run(sources, tmp_path / "without", stages=(), noise_ratio=0.0, paragraphs=None)
    assert [*map(str, rows(with_it, "kept"))] == [*map(str, rows(without_it, "kept"))]
    assert with_it.report["waterfall"][2] == {"stage": "paragraphs", "documents": 0, "bytes": 0, "changed": 0}

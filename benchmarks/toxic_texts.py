"""Labelled sentences for the default model of toxicity: patterns filled with the word lists, each kind with harmless twins.

What a group is called must not make a sentence toxic: every group stands in as many friendly and sober sentences as in hateful
ones. The patterns are in toxic_texts.txt; the insults are those of the word lists that danlu carries.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path

from danlu.data.curate.toxicity.matcher import hits
from danlu.data.curate.toxicity.word_lists import lists


def _sections() -> dict[str, list[str]]:
    parts = re.split(r"^\[(\w+)\]\n", Path(__file__).with_suffix(".txt").read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {name: body.splitlines() for name, body in zip(parts[::2], parts[1::2], strict=True)}


LISTS = _sections()
TEACHER = """
import json, sys
from profanity_check import predict_prob
print(json.dumps([float(p) for p in predict_prob(json.load(sys.stdin))]))
"""
VOCABULARY = """
import json, os, joblib, profanity_check
words = joblib.load(os.path.join(os.path.dirname(profanity_check.__file__), "data", "vectorizer.joblib")).vocabulary_
print(json.dumps(sorted(words)))
"""


def labelled(plain: list[str], packages: Path, rng: random.Random) -> tuple[list[str], list[int]]:
    """Sentences, and 1 for the toxic ones. `plain` are harmless but for what the word lists find in them."""
    harmless = [text for text in plain if not any(hit.sure for hit in hits(text))]
    insults_en = [word for word, weight in lists().english.items() if weight >= 0.5 and len(word) > 2]
    insults_zh = [word for word, kind in lists().chinese.items() if kind != "pass"] + LISTS["mean_han"] * 12
    found = [(text, 0) for text in harmless]
    kinds = {"en": (insults_en, LISTS["kind_words"]), "zh": (insults_zh, LISTS["kind_han"])}
    for _ in range(10_000):
        for language, (insults, praise) in kinds.items():
            neutral, mean, kind, groups = (LISTS[f"{name}_{language}"] for name in ("insult", "mean", "kind", "groups"))
            found.append((_filled(rng.choice(neutral + mean), rng, insults, groups), 1))
            # The same pattern with a kind word, so that the insult is what counts.
            found.append((_filled(rng.choice(neutral), rng, praise, groups), 0))
            found.append((_filled(rng.choice(kind), rng, praise, groups), 0))
        found.append((_daily(rng), 0))
    made = found[len(harmless) :]
    for text in rng.choices(harmless, k=40_000):
        language = "zh" if _han(text) else "en"
        found.append(_inside(text, rng, made, kinds[language][0], LISTS[f"groups_{language}"]))
    found += taught([text for text in harmless if text.isascii()], packages, rng)
    return [text for text, _ in found], [label for _, label in found]


def _inside(text: str, rng: random.Random, made: list[tuple[str, int]], insults: list[str], groups: list[str]) -> tuple[str, int]:
    """A harmless sentence with a group, an insult or a whole pattern put in, so that length and surroundings say nothing."""
    parts = re.findall("[\u3400-\u9fff]{2}|[^\u3400-\u9fff ]+|.", text)[: rng.randint(2, 30)]
    sign = "" if _han(text) else " "
    way = rng.random()
    other, label = (rng.choice(groups), 0) if way < 0.45 else (rng.choice(insults), 1) if way < 0.65 else rng.choice(made)
    if _han(other) != _han(text):
        other, label = rng.choice(groups), 0
    parts.insert(rng.randint(0, len(parts)), sign + other + sign)
    return "".join(parts).strip(), label


def _han(text: str) -> bool:
    return bool(re.search("[\u3400-\u9fff]", text))


def _filled(pattern: str, rng: random.Random, words: list[str], groups: list[str]) -> str:
    word, group, other = rng.choice(words), rng.choice(groups), rng.choice(groups)
    return pattern.format(i=word, k=word, g=group, g2=other)


def taught(sentences: list[str], packages: Path, rng: random.Random) -> list[tuple[str, int]]:
    """English sentences with words of alt-profanity-check's vocabulary put in, as that package judges them; none without it."""
    python = packages.parents[2] / "bin" / "python"
    if not (packages / "profanity_check").is_dir() or not python.exists():
        return []
    words = [word for word in _asked(python, VOCABULARY, None) if word.isalpha() and word not in _names()]
    weights = [max(0.02, chance) for chance in _asked(python, TEACHER, words)]
    made = []
    for _ in range(30_000):
        parts = rng.choice(sentences).split()[: rng.randint(4, 25)]
        for word in rng.choices(words, weights, k=rng.randint(1, 3)):
            parts.insert(rng.randint(0, len(parts)), word)
        made.append(" ".join(parts).lower())
    return [
        (text, int(chance > 0.5))
        for text, chance in zip(made, _asked(python, TEACHER, made), strict=True)
        if abs(chance - 0.5) > 0.2
    ]


def _daily(rng: random.Random) -> str:
    """A harmless sentence with what insults are made of."""
    return re.sub(r"\{([^}]*)\}", lambda match: rng.choice(match[1].split("|")), rng.choice(LISTS["daily_zh"]))


def _names() -> set[str]:
    """What groups are called, in one and in many: the teacher takes some of them for abuse."""
    return {
        form
        for name in [*LISTS["groups_en"], "gay", "homosexual", "lesbian", "queer", "jew", "muslim"]
        for form in (name, name.rstrip("s"))
    }


def _asked(python: Path, program: str, given: object) -> list[object]:
    done = subprocess.run([python, "-c", program], input=json.dumps(given), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)

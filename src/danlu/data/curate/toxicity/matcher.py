"""Toxic words found in one pass over a text, whole and through the usual disguises, and harmless words that hold one let alone.

Latin words are whole tokens, looked up by hash. What stands in the way is taken off first: case, accents, full width, letters of
other alphabets that look alike (fuсk with a Cyrillic с), leet (sh1t, @ss), stretching (fuuuck), signs inside (f.u.c.k, f*ck) and
blanks between single letters (f u c k). Chinese has no blanks, so words are looked up from every character that begins one; the
spellings by sound or look stand in the list, and signs between two characters (傻*逼) are passed over.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from typing import NamedTuple

WEIGHTS = {"slur": 2.0, "plain": 1.0, "phrase": 1.0, "maybe": 0.5}
ENDINGS = ("", "s", "ed", "er", "ers", "ing", "in", "ings")
NEAR = 4
"""Words (or pairs of Chinese characters) within which a word with a harmless sense is aimed at somebody or stands by a hit."""
LONGEST = 24
"""Characters of a disguised word."""
HAN = "\u3400-\u9fff"
_LEET = [str.maketrans("013457@$!|+€", f"o{one}eastasiite") for one in "il"]
"""What digits and signs stand for; 1 is i or l."""
_MASKED = frozenset("abcdefghijklmnopqrstuvwxyz*")
_LOOKS_LIKE = str.maketrans("асеорхукнімтвѕԁɡӏοαεικνρυ", "aceopxykhimtbsdgloaeiknpu")
"""Cyrillic and Greek small letters in Latin words."""
_TRADITIONAL = str.maketrans(
    "媽馬瑪碼嗎幹雞賤種雜爛貨殺滾國臺灣豬腦殘癱進換網視頻圖說門淺廢親應該學婦蕩給們這群誰來還無恥敗類畜鱉鬼東渾壞",
    "妈马玛码吗干鸡贱种杂烂货杀滚国台湾猪脑残瘫进换网视频图说门浅废亲应该学妇荡给们这群谁来还无耻败类畜鳖鬼东浑坏",
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\ufe00-\ufe0f]")
_WORD = re.compile(r"[a-z]+")
_TOKEN = re.compile(rf"[^\s{HAN}\u3000-\u303f]+")
_EDGES = ".,;:?!()[]{}<>\"'`-_~#%^&=/\\"
_SPELLED = re.compile(r"(?<![a-z0-9])[a-z](?:[ .\-_*][a-z]){2,11}(?![a-z0-9])")
_NOT_LETTERS = re.compile("[^a-z]")
_SIGNS = re.compile(r"[._\-/:=]")
_STRETCHED = re.compile(r"(.)\1{2,}")
_BETWEEN = re.compile(rf"(?<=[{HAN}])[ *_\-·.~^+=|/\\#@&$%…•`'\"<>]{{1,3}}(?=[{HAN}])")
_ABBREVIATION = re.compile(
    rf"(?<=[{HAN}])[a-z]{{2,3}}(?! ?[a-z0-9.])|(?<![a-z0-9 .])[a-z]{{2,3}}(?=[{HAN}])|(?<![a-z0-9])[a-z]{{4,6}}(?![a-z0-9])"
)
"""Initials of Chinese abuse: two or three letters only where they touch a Chinese character (sb is also somebody)."""


class Hit(NamedTuple):
    """A toxic word where it stands."""

    at: int
    """Character of the folded text."""
    word: str
    weight: float
    sure: bool
    """False: it also has a harmless sense."""


class Lists(NamedTuple):
    """What is looked for. Words map to weights; Chinese words in braces are spelled out."""

    english: dict[str, float]
    maybe: frozenset[str]
    aim: frozenset[str]
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    """By first word."""
    chinese: dict[str, float]
    """Weights; 0: harmless."""
    chinese_maybe: frozenset[str]
    chinese_aim: frozenset[str]
    abbreviations: frozenset[str]
    by_length: dict[int, tuple[str, ...]]
    """English words without a harmless sense."""


def spellings(pattern: str) -> Iterator[str]:
    """All that a word with braces stands for."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    for choice in product(*(part.split("|") if odd else [part] for part, odd in zip(parts, (0, 1) * len(parts), strict=False))):
        yield "".join(choice)


def _entries(name: str) -> Iterator[tuple[str, list[str]]]:
    for line in (files(__package__) / "lists" / name).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, *words = line.split()
            yield kind, words


@cache
def lists() -> Lists:
    """The lists that danlu carries."""
    english: dict[str, float] = {}
    maybe, aim, phrases = set(), set(), list[tuple[str, ...]]()
    for kind, words in _entries("english.txt"):
        if kind == "phrase":
            phrases.append(tuple(" ".join(words).replace("'", " ").split()))
        elif kind == "aim":
            aim.update(words)
        else:
            for word in words:
                for form in [word[1:-1] + ending for ending in ENDINGS] if word.startswith("(") else [word]:
                    english[form] = WEIGHTS[kind]
                    if kind == "maybe":
                        maybe.add(form)
    by_first: dict[str, tuple[tuple[str, ...], ...]] = {}
    for phrase in phrases:
        by_first[phrase[0]] = (*by_first.get(phrase[0], ()), phrase)
    chinese: dict[str, float] = {}
    chinese_maybe, chinese_aim, abbreviations = set(), set(), set()
    for kind, words in _entries("chinese.txt"):
        for word in (spelled.lower() for pattern in words for spelled in spellings(pattern)):
            if kind == "aim":
                chinese_aim.add(word)
            elif word.isascii():
                abbreviations.add(word)
            elif kind == "pass":
                chinese[word] = 0.0
            else:
                chinese.setdefault(word, WEIGHTS[kind])
                if kind == "maybe":
                    chinese_maybe.add(word)
    by_length: dict[int, tuple[str, ...]] = {}
    for word in english:
        if word not in maybe:
            by_length[len(word)] = (*by_length.get(len(word), ()), word)
    return Lists(
        english,
        frozenset(maybe),
        frozenset(aim),
        by_first,
        chinese,
        frozenset(word for word in chinese_maybe if chinese[word] == WEIGHTS["maybe"]),
        frozenset(chinese_aim),
        frozenset(abbreviations),
        by_length,
    )


@lru_cache(4096)
def _unmasked(token: str) -> str | None:
    """The first word of the lists that letters and asterisks can stand for: f*ck, f***, sh*t, motherf*cker."""
    if not token[0].isalpha() or len(token) < 4 or 3 * token.count("*") > 2 * len(token) + 1 or not set(token) <= _MASKED:
        return None
    pattern = re.compile(token.replace("*", "[a-z]"))
    known = lists()
    return next((word for word in known.by_length.get(len(token), ()) if pattern.fullmatch(word)), None)


def fold(text: str) -> str:
    """Lower case without accents, widths, invisible characters and look-alikes; the lists' traditional characters simplified."""
    text = text.lower()
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    if re.search("[\u00c0-\u024f]", text):
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    if re.search("[a-z][\u0370-\u052f\u0261]|[\u0370-\u052f\u0261][a-z]", text):
        text = text.translate(_LOOKS_LIKE)
    return text.translate(_TRADITIONAL)


def hits(text: str) -> list[Hit]:
    """The toxic words of a text, in order; those with a harmless sense only beside others or where they are aimed at somebody."""
    folded = fold(text)
    found = list(_latin(folded))
    if not folded.isascii():
        found += _han(_BETWEEN.sub("", folded))
    return sorted(found)


def _latin(folded: str) -> Iterator[Hit]:
    known = lists()
    tokens = [(match.start(), match[0]) for match in _WORD.finditer(folded)]
    words = [word for _, word in tokens]
    doubtful, sure = [], []
    for number, (at, word) in enumerate(tokens):
        weight = known.english.get(word)
        if weight is None and len(word) > 3 and (plain := _unstretched(word)) in known.english and plain not in known.maybe:
            weight, word = known.english[plain], plain
        if weight is not None and word in known.maybe:
            doubtful.append((number, at, word, weight))
        elif weight is not None:
            sure.append(number)
            yield Hit(at, word, weight, True)
        for phrase in known.phrases.get(word, ()):
            if tuple(words[number : number + len(phrase)]) == phrase:
                sure.append(number)
                yield Hit(at, " ".join(phrase), WEIGHTS["phrase"], True)
    for at, word in _disguised(folded):
        sure.append(sum(start < at for start, _ in tokens))
        yield Hit(at, word, known.english[word], True)
    for number, at, word, weight in doubtful:
        around = words[max(0, number - NEAR) : number] + words[number + 1 : number + 1 + NEAR // 2]
        if any(abs(number - other) <= 2 * NEAR for other in sure) or not known.aim.isdisjoint(around):
            yield Hit(at, word, weight, False)


def _unstretched(word: str) -> str:
    """fuuuck is fuck; asssss is ass."""
    known = lists().english
    once = _STRETCHED.sub(r"\1", word)
    return once if once in known or once == word else _STRETCHED.sub(r"\1\1", word)


def _disguised(folded: str) -> Iterator[tuple[int, str]]:
    """Toxic words with signs, digits or blanks between or for their letters."""
    known = lists()
    for match in _TOKEN.finditer(folded):
        token = match[0]
        if token.isalpha() or len(token) > 2 * LONGEST:
            continue
        token = token.strip(_EDGES)
        letters = sum(c.isalpha() for c in token)
        if letters == len(token) or 2 * letters < len(token) or len(token) > LONGEST:
            continue
        word = _unmasked(token) if "*" in token else None
        for leet in _LEET if word is None else ():
            bare = _NOT_LETTERS.sub("", token.translate(leet))
            bare = bare if bare in known.english else _unstretched(bare)
            if len(bare) > 2 and bare in known.english and bare not in known.maybe and not _is_joined(token, bare):
                word = bare
        if word is not None:
            yield match.start(), word
    for match in _SPELLED.finditer(folded):
        word = _NOT_LETTERS.sub("", match[0])
        if " " in match[0] and word in known.english and word not in known.maybe:
            yield match.start(), word


def _is_joined(token: str, word: str) -> bool:
    """Whether the word stands by itself between signs, where it was found already, or is joined from longer parts: as.sess."""
    parts = _SIGNS.split(token)
    return word in parts or (len(parts) > 1 and max(map(len, parts)) > 2)


def _han(folded: str) -> Iterator[Hit]:
    firsts, longest = _index()
    chinese, maybe, aim = lists().chinese, lists().chinese_maybe, lists().chinese_aim
    doubtful, sure = [], []
    end = 0
    for match in firsts.finditer(folded):
        at = match.start()
        if at < end:
            continue
        for length in range(longest[match[0]], 0, -1):
            word = folded[at : at + length]
            weight = chinese.get(word)
            if weight is None:
                continue
            end = at + length
            if word in maybe:
                doubtful.append((at, word))
            elif weight:
                sure.append(at)
                yield Hit(at, word, weight, True)
            break
    for match in _ABBREVIATION.finditer(folded):
        if match[0] in lists().abbreviations:
            sure.append(match.start())
            yield Hit(match.start(), match[0], WEIGHTS["plain"], True)
    for at, word in doubtful:
        around = re.split("[，。！？；：,.!?;:\n]", folded[max(0, at - 2 * NEAR) : at])[-1]
        behind = re.split("[，。！？；：,.!?;:\n]", folded[at + len(word) : at + len(word) + NEAR])[0]
        aimed = any(one in around or one in behind for one in aim)
        if aimed or any(abs(at - other) <= 4 * NEAR for other in sure):
            yield Hit(at, word, WEIGHTS["maybe"], False)


@cache
def _index() -> tuple[re.Pattern[str], dict[str, int]]:
    """A pattern of the characters that begin a Chinese word of the list, and the longest word of each."""
    longest: dict[str, int] = {}
    for word in lists().chinese:
        longest[word[0]] = max(longest.get(word[0], 0), len(word))
    return re.compile(f"[{''.join(longest)}]"), longest


def size(text: str) -> float:
    """Words of a text; a Chinese character counts as half a one."""
    han = 0 if text.isascii() else len(re.findall(f"[{HAN}]", text))
    return text.count(" ") + 1 + han / 2

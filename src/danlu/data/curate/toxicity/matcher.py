"""Toxic words found in one pass over a text, whole and through the usual disguises, and harmless words that hold one let alone.

Latin words are whole tokens, looked up by hash. What stands in the way is taken off first: case, accents, full width, letters of
other alphabets that look alike (fuсk with a Cyrillic с), leet (sh1t, @ss), stretching (fuuuck), signs inside (f.u.c.k, f*ck) and
blanks between single letters (f u c k). Chinese words are found by `han`.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from danlu.data.curate.toxicity import han
from danlu.data.curate.toxicity.han import HAN
from danlu.data.curate.toxicity.word_lists import WEIGHTS, Hit, lists

NEAR = 4
"""Words within which a word with a harmless sense is aimed at somebody or stands by a hit."""
LONGEST = 24
"""Characters of a disguised word."""
LEET = [str.maketrans("013457@$!|+€", f"o{one}eastasiite") for one in "il"]
"""What digits and signs stand for; 1 is i or l."""
_MASKED = frozenset("abcdefghijklmnopqrstuvwxyz*")
_LOOKS_LIKE = str.maketrans("асеорхукнімтвѕԁɡӏοαεικνρυ", "aceopxykhimtbsdgloaeiknpu")
"""Cyrillic and Greek small letters in Latin words."""
TRADITIONAL = str.maketrans(
    "媽馬瑪碼嗎幹雞賤種雜爛貨殺滾國臺灣豬腦殘癱進換網視頻圖說門淺廢親應該學婦蕩給們這群誰來還無恥敗類畜鱉鬼東渾壞",
    "妈马玛码吗干鸡贱种杂烂货杀滚国台湾猪脑残瘫进换网视频图说门浅废亲应该学妇荡给们这群谁来还无耻败类畜鳖鬼东浑坏",
)
_HAS_TRADITIONAL = re.compile(f"[{''.join(map(chr, TRADITIONAL))}]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\ufe00-\ufe0f]")
_WORD = re.compile(r"[a-z]+")
_TOKEN = re.compile(rf"[^\s{HAN}\u3000-\u303f]+")
EDGES = ".,;:?!()[]{}<>\"'`-_~#%^&=/\\"
_SPELLED = re.compile(r"(?<![a-z0-9])[a-z](?:[ .\-_*][a-z]){2,11}(?![a-z0-9])")
_NOT_LETTERS = re.compile("[^a-z]")
_SIGNS = re.compile(r"[._\-/:=]")
_STRETCHED = re.compile(r"(.)\1{2,}")


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
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    text = _INVISIBLE.sub("", text)
    if re.search("[\u00c0-\u024f]", text):
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    if re.search("[a-z][\u0370-\u052f\u0261]|[\u0370-\u052f\u0261][a-z]", text):
        text = text.translate(_LOOKS_LIKE)
    return text.translate(TRADITIONAL) if _HAS_TRADITIONAL.search(text) else text


def hits(text: str) -> list[Hit]:
    """The toxic words of a text, in order; those with a harmless sense only beside others or where they are aimed at somebody."""
    folded = fold(text)
    found = list(_latin(folded))
    if not folded.isascii():
        found += han.hits(folded)
    return sorted(found)


def _latin(folded: str) -> Iterator[Hit]:
    known = lists()
    words = _WORD.findall(folded)
    starts = [match.start() for match in _WORD.finditer(folded)]
    doubtful, sure = [], []
    for number, (at, word) in enumerate(zip(starts, words, strict=True)):
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
        sure.append(bisect_left(starts, at))
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
        word = None if match[0].isalpha() else _undisguised(match[0])
        if word is not None:
            yield match.start(), word
    for match in _SPELLED.finditer(folded):
        word = _NOT_LETTERS.sub("", match[0])
        if " " in match[0] and word in known.english and word not in known.maybe:
            yield match.start(), word


@lru_cache(1 << 16)
def _undisguised(token: str) -> str | None:
    """The toxic word that a token with signs or digits in it stands for, if it is one."""
    known = lists()
    token = token.strip(EDGES) if len(token) <= 2 * LONGEST else ""
    letters = sum(c.isalpha() for c in token)
    if letters == len(token) or 2 * letters < len(token) or len(token) > LONGEST:
        return None
    if "*" in token and (word := _unmasked(token)) is not None:
        return word
    for leet in LEET:
        bare = _NOT_LETTERS.sub("", token.translate(leet))
        bare = bare if bare in known.english else _unstretched(bare)
        if len(bare) > 2 and bare in known.english and bare not in known.maybe and not _is_joined(token, bare):
            return bare
    return None


def _is_joined(token: str, word: str) -> bool:
    """Whether the word stands by itself between signs, where it was found already, or is joined from longer parts: as.sess."""
    parts = _SIGNS.split(token)
    return word in parts or (len(parts) > 1 and max(map(len, parts)) > 2)


def size(text: str) -> float:
    """Words of a text; a Chinese character counts as half a one."""
    if text.isascii():
        return text.count(" ") + 1
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return text.count(" ") + 1 + int(((codes >= 0x3400) & (codes <= 0x9FFF)).sum()) / 2

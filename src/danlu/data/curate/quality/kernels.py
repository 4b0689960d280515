"""From UTF-8 bytes to what rules need to know of a text, compiled: one pass over characters, then some over words.

The compiled code is cached by the state of this file alone, so all that calls each other stands here.

A token is what stands between blanks; its word is the token without signs at both ends, if a letter or digit is left. A
letter of an unspaced script is a word by itself. Lines and paragraphs are compared without their blanks, words without case
of ASCII letters. Sizes are in characters, blanks not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import compiled
from danlu.data.curate.quality import classes as c

_U64 = np.uint64
_STEP = _U64(0x9E3779B97F4A7C15)
_MIX = _U64(0xFF51AFD7ED558CCD)
_EMPTY = _U64(0)

(
    CHARACTERS, LETTERS, UNSPACED, SIGNS, UNREADABLE, TOKENS, WORDS, WORD_CHARACTERS, LONGEST_WORD, ALPHABETIC_WORDS,
    STOP_WORDS, COMMON_CHARACTERS, HASHES, ELLIPSES, CURLY, LOREM_IPSUM, SENTENCES, LINES, LINE_ENDS, BULLET_LINES,
    ELLIPSIS_LINES, ENDED_LINES, SHORT_LINES, REPEATED_LINES, REPEATED_LINE_CHARACTERS, PARAGRAPHS, REPEATED_PARAGRAPHS,
    REPEATED_PARAGRAPH_CHARACTERS, TOP_2, TOP_3, TOP_4, REPEATED_5, REPEATED_6, REPEATED_7, REPEATED_8, REPEATED_9,
    REPEATED_10,
) = range(37)  # fmt: skip
"""Columns of what is measured; the last ten are shares of the characters of words."""
MEASURES = REPEATED_10 + 1
SHORT_LINE = 30
"""Columns up to which a line is short; an unspaced letter has two, and blanks inside count."""
GRAMS = 10
"""Words in the longest row that is looked for."""
BULLETS = "-*•‣◦▪●○■□◆▶·・–—"
CLOSERS = "\"'”’»)]）」』】》〉"
"""Signs that may follow the end of a sentence and belong to it."""
STOP = ("the", "be", "to", "of", "and", "that", "have", "with")
COMMON = ("的", "一", "是", "不", "了", "在", "有", "和", "这這", "我")
_BULLETS, _CLOSERS = (np.array([ord(sign) for sign in signs], np.int64) for signs in (BULLETS, CLOSERS))
_DOT, _ELLIPSIS, _LINE_END, _HASH, _CURLY, _WIDE = (ord(sign) for sign in ".…\n#{…")
_HANGUL, _HANGUL_END = 0xAC00, 0xD7A4
"""Korean syllables."""


def _hash(word: str) -> int:
    value = 0
    for letter in word.encode():
        value = (value ^ letter) * int(_STEP) % 2**64
    return value


_STOP = np.array([_hash(word) for word in STOP], np.uint64)
_LOREM, _IPSUM = _U64(_hash("lorem")), _U64(_hash("ipsum"))
_COMMON = np.array([[ord(form[0]), ord(form[-1])] for form in COMMON], np.int64)


@compiled
def _code(data: Array, at: int) -> Any:
    """(bytes, code point) of the character that begins at `at`."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return 1, lead
    if lead < 0xE0:
        return 2, (lead & 0x1F) << 6 | np.int64(data[at + 1] & 0x3F)
    if lead < 0xF0:
        return 3, (lead & 0x0F) << 12 | np.int64(data[at + 1] & 0x3F) << 6 | np.int64(data[at + 2] & 0x3F)
    code = (lead & 7) << 18 | np.int64(data[at + 1] & 0x3F) << 12 | np.int64(data[at + 2] & 0x3F) << 6
    return 4, code | np.int64(data[at + 3] & 0x3F)


@compiled
def _bits(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@compiled
def _common(code: int) -> int:
    for index in range(len(_COMMON)):
        if code == _COMMON[index, 0] or code == _COMMON[index, 1]:
            return 1 << index
    return 0


@compiled
def _scan(
    data: Array, start: int, stop: int, flags: Array, out: Array,
    units: Array, sizes: Array, lines: Array, line_sizes: Array, paragraphs: Array, paragraph_sizes: Array,
) -> int:  # fmt: skip
    """Measure data[start:stop] (valid UTF-8) into out[:REPEATED_LINES], and list hashes and sizes of words, lines and paragraphs.

    Returns the number of words; that of lines and paragraphs stands in `out`.
    """
    words = characters = letters = unspaced = signs = unreadable = tokens = proper = word_characters = longest = 0
    stop_words = common = np.int64(0)
    alphabetic = hashes = ellipses = curly = lorem_ipsum = sentences = line_count = line_ends = 0
    bullets = broken_off = ended = short = paragraph_count = 0
    in_token = has_letter = False
    word, word_end = _U64(0), _U64(0)  # hash of the token from its first letter or digit on, now and at the last of them
    before = _U64(0)  # hash of the word before
    size = size_end = 0
    line, line_size, columns, gap = _U64(0), 0, 0, 0  # gap: blanks since the last character of the line
    paragraph, paragraph_size = _U64(0), 0
    dots = 0  # dots in a row just before
    ellipsis = False
    ending = 0  # the sign, if what was just before ends a sentence
    kind: Any
    at = start
    while at <= stop:
        if at == stop:
            length, code, kind = 1, _LINE_END, c.SPACE
        else:
            length, code = _code(data, at)
            kind = np.int64(flags[code]) if code < 0x10000 else c.SIGN
            if 0x20000 <= code < 0x40000:
                kind = c.LETTER | c.UNSPACED
            elif code >= 0xF0000:
                kind = c.UNREADABLE
        at += length
        if kind & c.SKIPPED:
            continue
        if in_token and kind & (c.SPACE | c.UNSPACED):
            in_token = False
            tokens += 1
            if size_end:
                units[words], sizes[words] = word_end, size_end
                words += 1
                proper += 1
                word_characters += size_end
                longest = max(longest, size_end)
                alphabetic += has_letter
                lorem_ipsum += word_end == _IPSUM and before == _LOREM
                before = word_end
                if size_end <= 4:
                    for index in range(len(_STOP)):
                        if word_end == _STOP[index]:
                            stop_words |= 1 << index
            has_letter = False
            word = word_end = _U64(0)
            size = size_end = 0
        if kind & c.SPACE:
            sentences += ending > 0
            if code == _LINE_END:
                line_ends += at <= stop
                if line_size:
                    lines[line_count], line_sizes[line_count] = line, line_size
                    line_count += 1
                    broken_off += ellipsis
                    ended += ending > 0
                    short += columns <= SHORT_LINE
                    paragraph = (paragraph ^ line) * _MIX
                    paragraph_size += line_size
                if paragraph_size and (not line_size or at > stop):
                    paragraphs[paragraph_count], paragraph_sizes[paragraph_count] = paragraph, paragraph_size
                    paragraph_count += 1
                    paragraph, paragraph_size = _U64(0), 0
                line, line_size, columns, gap = _U64(0), 0, 0, 0
                ellipsis = False
            elif line_size:
                gap += 1
            ending = dots = 0
            continue
        if line_size == 0:
            for index in range(len(_BULLETS)):
                bullets += code == _BULLETS[index]
        characters += 1
        line_size += 1
        columns += gap + 1
        gap = 0
        line = (line ^ _U64(code)) * _STEP
        if kind & c.UNSPACED:
            letters += 1
            unspaced += 1
            columns += 1
            common |= _common(code)
            units[words], sizes[words] = (_U64(code) + _U64(1)) * _MIX, 1
            words += 1
            sentences += ending >= _WIDE  # the next one begins without a blank
            ellipsis = False
            ending = dots = 0
            continue
        in_token = True
        if size or kind & (c.LETTER | c.DIGIT):
            lower = code | 0x20 if 0x41 <= code <= 0x5A else code
            word = (word ^ _U64(lower)) * _STEP
            size += 1
        if kind & (c.LETTER | c.DIGIT):
            word_end, size_end = word, size
            if kind & c.LETTER:
                letters += 1
                has_letter = True
                word_characters += _HANGUL <= code < _HANGUL_END
            ellipsis = False
            ending = dots = 0
            continue
        if kind & c.UNREADABLE:
            unreadable += 1
            continue
        signs += 1
        hashes += code == _HASH
        curly += code == _CURLY
        dots = dots + 1 if code == _DOT else 0
        if dots == 3 or (code == _ELLIPSIS and not ellipsis):
            ellipses += 1
        ellipsis = dots >= 3 or code == _ELLIPSIS
        closes = False
        for index in range(len(_CLOSERS)):
            closes |= code == _CLOSERS[index]
        if kind & c.ENDING:
            ending = code
        elif ending and not closes:
            sentences += ending >= _WIDE
            ending = 0
    values = (
        characters, letters, unspaced, signs, unreadable, tokens, proper, word_characters, longest, alphabetic,
        _bits(stop_words), _bits(common), hashes, ellipses, curly, lorem_ipsum, sentences, line_count, line_ends, bullets,
        broken_off, ended, short,
    )  # fmt: skip
    for index in range(len(values)):
        out[index] = values[index]
    out[PARAGRAPHS] = paragraph_count
    return words


@compiled
def _slots(count: int, keys: Array) -> int:
    """Clear as much of the table as `count` entries need; return the mask of its size."""
    size = 4
    while size < 2 * count:
        size *= 2
    keys[:size] = _EMPTY
    return size - 1


@compiled
def _slot(key: np.uint64, mask: int, keys: Array) -> Any:
    """Where a key, which is not 0, stands in the table or would stand."""
    at = np.int64((key ^ (key >> _U64(32))) & _U64(mask))
    while keys[at] != _EMPTY and keys[at] != key:
        at = (at + 1) & mask
    return at


@compiled
def _repeated(hashes: Array, sizes: Array, count: int, keys: Array) -> tuple[int, int]:
    """How many of some pieces equal one before them, and the characters in those."""
    mask = _slots(count, keys)
    number = characters = 0
    for index in range(count):
        key = hashes[index] | _U64(1)
        at = _slot(key, mask, keys)
        if keys[at] == key:
            number += 1
            characters += sizes[index]
        keys[at] = key
    return number, characters


@compiled
def _rows(grams: Array, count: int, length: int, ends: Array, keys: Array, counts: Array) -> tuple[int, int]:
    """Of rows of `length` words: characters in the commonest one over all its places, and in those that were there before.

    ends[i]: characters of the first i words. Characters that several repeated rows share count once. The commonest is the
    longest of those that occur most often; where none occurs twice there is no commonest.
    """
    mask = _slots(count, keys)
    most, top, covered, behind = 1, 0, 0, 0
    for index in range(count):
        key = grams[index] | _U64(1)
        at = _slot(key, mask, keys)
        if keys[at] != key:
            keys[at] = key
            counts[at] = 1
            continue
        counts[at] += 1
        size = ends[index + length] - ends[index]
        if counts[at] > most or (counts[at] == most and counts[at] * size > top):
            most, top = counts[at], counts[at] * size
        covered += ends[index + length] - ends[max(index, behind)]
        behind = index + length
    return top, covered


@compiled
def _repeats(
    units: Array, sizes: Array, words: int, factor: int, out: Array, grams: Array, ends: Array, keys: Array, counts: Array
) -> None:
    """out[TOP_2:]: rows of 2 to 10 words, of which each counts as `factor` of the units."""
    ends[0] = 0
    for index in range(words):
        ends[index + 1] = ends[index] + sizes[index]
        grams[index] = units[index]
    for length in range(2, GRAMS * factor + 1):
        count = words - length + 1
        if count < 2:
            return
        for index in range(count):
            mixed = (grams[index] ^ (grams[index] >> _U64(29))) * _MIX
            grams[index] = mixed + units[index + length - 1] * _STEP
        if length % factor or length < 2 * factor:
            continue
        top, covered = _rows(grams, count, length, ends, keys, counts)
        if covered == 0:  # no row repeats, so none that is longer does
            return
        row = length // factor
        share = (top if row <= 4 else covered) / ends[words]
        out[TOP_2 + row - 2] = min(1.0, share)


@compiled
def measure(data: Array, stops: Array, flags: Array, out: Array) -> None:
    """Measure the texts that lie back to back in `data`, text d up to stops[d], into out (texts, MEASURES) float64."""
    longest = start = 0
    for stop in stops:
        longest = max(longest, stop - start)
        start = stop
    slots = 4
    while slots < 2 * longest + 2:
        slots *= 2
    units, lines, paragraphs, grams = (
        np.empty(longest + 1, np.uint64),
        np.empty(longest + 1, np.uint64),
        np.empty(longest + 1, np.uint64),
        np.empty(longest + 1, np.uint64),
    )
    sizes, line_sizes, paragraph_sizes, ends = (
        np.empty(longest + 1, np.int64),
        np.empty(longest + 1, np.int64),
        np.empty(longest + 1, np.int64),
        np.empty(longest + 2, np.int64),
    )
    keys, counts = np.empty(slots, np.uint64), np.empty(slots, np.int64)
    start = np.int64(0)
    for d in range(len(stops)):
        row = out[d]
        row[:] = 0
        words = _scan(data, start, stops[d], flags, row, units, sizes, lines, line_sizes, paragraphs, paragraph_sizes)
        number, characters = _repeated(lines, line_sizes, int(row[LINES]), keys)
        row[REPEATED_LINES], row[REPEATED_LINE_CHARACTERS] = number, characters
        number, characters = _repeated(paragraphs, paragraph_sizes, int(row[PARAGRAPHS]), keys)
        row[REPEATED_PARAGRAPHS], row[REPEATED_PARAGRAPH_CHARACTERS] = number, characters
        factor = 2 if 2 * row[UNSPACED] > row[LETTERS] else 1
        _repeats(units, sizes, words, factor, row, grams, ends, keys, counts)
        start = stops[d]

"""The texts of lines of JSON, compiled: one field of each line, unescaped, one text behind the other.

It knows the lines of corpora and stops at any other, which is then for a reader that names what is wrong. What it takes is
valid JSON (RFC 8259) and valid UTF-8.
"""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.data.compiled import compiled

_U64 = np.uint64
_NO = -1
"""A position that says: not understood."""
_QUOTE, _BACKSLASH, _COMMA, _COLON, _NEWLINE = 0x22, 0x5C, 0x2C, 0x3A, 0x0A
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 0x7B, 0x7D, 0x5B, 0x5D
_DEEPEST = 60
_LONGEST_NUMBER = 300
_WORDS = tuple(np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))
_SPECIAL = np.zeros(256, np.bool_)
_SPECIAL[[*range(0x20), _QUOTE, _BACKSLASH]] = True
_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[[ord(name) for name in '"\\/bfnrt']] = [ord(meant) for meant in '"\\/\b\f\n\r\t']
_HEX = np.full(256, -1, np.int64)
_HEX[[ord(digit) for digit in "0123456789abcdefABCDEF"]] = [int(digit, 16) for digit in "0123456789abcdefABCDEF"]


@compiled
def lines(data: Array, at: int, field: Array, longest: int, out: Array, ends: Array, line_ends: Array) -> int:
    """Take lines of data[at:], whole ones, until one is not understood; return how many.

    field: UTF-8 bytes of the name of the field. out: room for the texts, as long as `data`.
    ends, line_ends: room for an entry a line: where its text ends in `out`, where it ends in `data`, behind the line end.
    """
    filled = count = np.int64(0)
    while at < len(data):
        text, end = _line(data, at, field, out, filled)
        if text < 0 or text - filled > longest or _perhaps_blank(out, filled, text) or not _is_text(data, at, end):
            break
        filled, at = text, end
        ends[count], line_ends[count] = text, at
        count += 1
    return count


@compiled
def _is_text(data: Array, start: int, stop: int) -> bool:
    """Whether data[start:stop], which ends in a byte below 0x80, is valid UTF-8 (Unicode, table 3-7)."""
    bits = np.uint8(0)
    for i in range(start, stop):
        bits |= data[_U64(i)]
    if bits < 0x80:
        return True
    at = start
    while at < stop:
        lead = data[_U64(at)]
        if lead < 0x80:
            at += 1
            continue
        second = data[_U64(at + 1)]
        if 0xE1 <= lead <= 0xEF:
            length, least, most = 3, 0x80, 0x9F if lead == 0xED else 0xBF
        elif 0xC2 <= lead <= 0xDF:
            length, least, most = 2, 0x80, 0xBF
        elif lead == 0xE0:
            length, least, most = 3, 0xA0, 0xBF
        elif 0xF0 <= lead <= 0xF4:
            length, least, most = 4, 0x90 if lead == 0xF0 else 0x80, 0x8F if lead == 0xF4 else 0xBF
        else:
            return False
        if second < least or second > most:
            return False
        for place in range(2, length):
            if data[_U64(at + place)] & 0xC0 != 0x80:
                return False
        at += length
    return True


@compiled
def _perhaps_blank(out: Array, start: int, end: int) -> bool:
    """False when there is surely something to read: Unicode's blanks begin with a byte below 0x21, 0xC2 or 0xE1 to 0xE3."""
    at = start
    while at < end and (out[at] < 0x21 or out[at] == 0x7F or 0x80 <= out[at] < 0xC3 or 0xE1 <= out[at] <= 0xE3):
        at += 1
    return at == end


@compiled
def _line(data: Array, at: int, field: Array, out: Array, filled: int) -> tuple[int, int]:
    """(end of the text in `out`, start of the next line) of the line at `at`; _NO: not understood.

    Inside, `text` is where the text ends, and strings of other fields are unescaped behind it and forgotten.
    """
    if data[at] != _OPEN:
        return _NO, _NO
    text = _NO
    at = _blanks(data, at + 1)
    while True:
        start = at
        at, _ = _string(data, at, out, filled if text < 0 else text)
        if at < 0:
            return _NO, _NO
        wanted = at - start == len(field) + 2
        for place in range(len(field) if wanted else 0):
            wanted &= data[start + 1 + place] == field[place]
        for place in range(start, at):
            if data[place] == _BACKSLASH:  # perhaps the field's name in disguise
                return _NO, _NO
        at = _blanks(data, at)
        if data[at] != _COLON:
            return _NO, _NO
        at = _blanks(data, at + 1)
        if wanted:
            at, text = _string(data, at, out, filled)  # of several the last counts
        else:
            at = _value(data, at, out, filled if text < 0 else text)
        if at < 0:
            return _NO, _NO
        at = _blanks(data, at)
        if data[at] == _COMMA:
            at = _blanks(data, at + 1)
            continue
        if data[at] != _CLOSE or data[at + 1] != _NEWLINE:
            return _NO, _NO
        return text, at + 2


@compiled
def _blanks(data: Array, at: int) -> int:
    while data[at] == 0x20 or data[at] == 0x09:
        at += 1
    return at


@compiled
def _value(data: Array, at: int, out: Array, free: int) -> int:
    """Where any value ends; it is checked and forgotten. Bits of `objects` tell which of the open containers are objects."""
    depth, objects = 0, 0
    while True:
        first = data[at]
        if first in (_OPEN, _OPEN_LIST):
            if depth == _DEEPEST:
                return _NO
            depth, objects = depth + 1, objects << 1 | (first == _OPEN)
            at = _blanks(data, at + 1)
            if data[at] != (_CLOSE if objects & 1 else _CLOSE_LIST):
                if objects & 1:
                    at = _key(data, at, out, free)
                    if at < 0:
                        return _NO
                continue
        elif first == _QUOTE:
            at, _ = _string(data, at, out, free)
        elif first == 0x2D or 0x30 <= first <= 0x39:
            at = _number(data, at)
        else:
            at = _word(data, at)
        if at < 0:
            return _NO
        while depth:
            at = _blanks(data, at)
            if data[at] == _COMMA:
                at = _blanks(data, at + 1)
                if objects & 1:
                    at = _key(data, at, out, free)
                    if at < 0:
                        return _NO
                break
            if data[at] != (_CLOSE if objects & 1 else _CLOSE_LIST):
                return _NO
            at += 1
            depth, objects = depth - 1, objects >> 1
        if depth == 0:
            return at


@compiled
def _key(data: Array, at: int, out: Array, free: int) -> int:
    """Where the value of a member of an object begins."""
    at, _ = _string(data, at, out, free)
    if at < 0:
        return _NO
    at = _blanks(data, at)
    return _blanks(data, at + 1) if data[at] == _COLON else _NO


@compiled
def _word(data: Array, at: int) -> int:
    """Behind true, false or null."""
    for word in _WORDS:
        same = at + len(word) <= len(data)
        for place in range(len(word) if same else 0):
            same &= data[at + place] == word[place]
        if same:
            return at + len(word)
    return _NO


@compiled
def _digits(data: Array, at: int) -> int:
    while 0x30 <= data[at] <= 0x39:
        at += 1
    return at


@compiled
def _number(data: Array, at: int) -> int:
    start = at
    if data[at] == 0x2D:
        at += 1
    whole = at
    at = _digits(data, at)
    if at == whole or (data[whole] == 0x30 and at > whole + 1):
        return _NO
    if data[at] == 0x2E:
        part = at + 1
        at = _digits(data, part)
        if at == part:
            return _NO
    if data[at] | 0x20 == 0x65:
        at += 1
        if data[at] == 0x2B or data[at] == 0x2D:
            at += 1
        part = at
        at = _digits(data, part)
        if at == part:
            return _NO
    return at if at - start <= _LONGEST_NUMBER else _NO


@compiled
def _string(data: Array, at: int, out: Array, filled: int) -> tuple[int, int]:
    """(behind the closing quote, end in `out`) of the string at `at`; the text goes to out[filled:]."""
    if data[at] != _QUOTE:
        return _NO, _NO
    at += 1
    while True:
        byte = data[_U64(at)]  # an index without a sign is not looked at whether it counts from the end
        while not _SPECIAL[byte]:
            out[_U64(filled)] = byte
            at += 1
            filled += 1
            byte = data[_U64(at)]
        if byte == _QUOTE:
            return at + 1, filled
        if byte != _BACKSLASH:
            return _NO, _NO
        meant = _ESCAPES[data[_U64(at + 1)]]
        if meant:
            out[_U64(filled)] = meant
            at += 2
            filled += 1
            continue
        at, filled = _character(data, at, out, filled)
        if at < 0:
            return _NO, _NO


@compiled
def _character(data: Array, at: int, out: Array, filled: int) -> tuple[int, int]:
    r"""Write the character of a \uXXXX, or of two, in UTF-8; half of a surrogate pair is not understood."""
    code = _four(data, at)
    at += 6
    if 0xD800 <= code < 0xDC00:
        low = _four(data, at)
        if not 0xDC00 <= low < 0xE000:
            return _NO, _NO
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        at += 6
    elif code < 0 or 0xDC00 <= code < 0xE000:
        return _NO, _NO
    if code < 0x80:
        out[filled] = code
        return at, filled + 1
    size = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    for place in range(size - 1, 0, -1):
        out[filled + place] = 0x80 | (code & 0x3F)
        code >>= 6
    out[filled] = (0xF00 >> size & 0xFF) | code
    return at, filled + size


@compiled
def _four(data: Array, at: int) -> int:
    r"""The number in \uXXXX, or _NO."""
    if at + 6 > len(data) or data[at] != _BACKSLASH or data[at + 1] != 0x75:
        return _NO
    code = 0
    for place in range(2, 6):
        digit = _HEX[data[at + place]]
        if digit < 0:
            return _NO
        code = code << 4 | digit
    return code

"""The values of a JSON file of any size, one at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from danlu.data.text import BYTE_ORDER_MARK, NotText, not_utf8

MISSING = object()
"""What `pick` gives where there is no such field."""
_CHUNK = 1 << 16
_NEAR_END = 16
"""An error this close to the end of what was read may come from a value that is cut in two (`tru|e`, `\\u12|34`)."""
_GAP = re.compile(r"[\s,]*")


def pick(value: object, field: str) -> object:
    """The field of a JSON object; a dot reaches into a nested object where no field has the dotted name itself."""
    if isinstance(value, dict) and field in value:
        return value[field]
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    return value


def json_values(stream: Any, longest: int) -> Iterator[Any]:
    """Yield the elements of the array that the stream holds, or else its values one after the other (mostly one object).

    Memory: about twice the longest value, however long the file. JSON lines under the name `.json` are read as well.

    Raises:
        NotText: broken JSON, invalid UTF-8 or a value of more than `longest` characters; the values before it are yielded.
    """
    scan = json.JSONDecoder().raw_decode
    source = _Characters(stream)
    buffer, at = source.more(_CHUNK), 0
    array = buffer.lstrip().startswith("[")
    if array:
        at = buffer.index("[") + 1
    while True:
        gap = _GAP.match(buffer, at)
        assert gap is not None
        at = gap.end()
        try:
            if at == len(buffer):
                raise json.JSONDecodeError("the array is not closed" if array else "no value", buffer, at)
            if array and buffer[at] == "]":
                break
            value, end = scan(buffer, at)
            if end == len(buffer) and not source.ended:
                raise json.JSONDecodeError("may go on", buffer, end)
        except json.JSONDecodeError as error:
            cut = error.pos >= len(buffer) - _NEAR_END or error.msg.startswith("Unterminated string")
            if cut and not source.ended and len(buffer) - at <= longest:
                buffer, at = buffer[at:] + source.more(max(_CHUNK, len(buffer) - at)), 0
                continue
            if source.broken:
                raise NotText(source.broken) from None
            if at == len(buffer) and not array:
                return
            if cut and not source.ended:
                raise NotText(f"a value of more than {longest:,} characters") from None
            place = source.characters - len(buffer) + error.pos
            raise NotText(f"not JSON: {error.msg.removesuffix(' at')} at character {place:,}") from None
        except RecursionError:
            raise NotText("JSON nested too deeply") from None
        except ValueError as error:  # a number of thousands of digits
            raise NotText(f"not JSON that can be read: {error}") from None
        yield value
        at = end
    rest = buffer[at + 1 :]
    while not rest.strip() and not source.ended:
        rest = source.more(_CHUNK)
    if rest.strip() or source.broken:
        raise NotText(source.broken or "more text after the end of the array")


class _Characters:
    """UTF-8 text in chunks. Bytes that are no UTF-8 end it, with the reason in `broken`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.bytes = 0
        self.characters = 0
        self.ended = False
        self.broken = ""

    def more(self, count: int) -> str:
        """The next `count` bytes or somewhat less as text; empty only at the end."""
        text = ""
        while not text and not self.ended:
            data = self.stream.read1(count)
            self.ended = not data
            start, pending = self.bytes, self.decoder.getstate()[0]
            self.bytes += len(data)
            if start == 0 and data.startswith(BYTE_ORDER_MARK):
                data, start = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
            try:
                text = self.decoder.decode(data, final=self.ended)
            except UnicodeDecodeError as error:
                self.ended = True
                self.broken = not_utf8(pending + data, error.start, start - len(pending))
                text = (pending + data)[: error.start].decode("utf-8")
        self.characters += len(text)
        return text

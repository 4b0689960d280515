"""A stream in blocks of whole lines, each as large as a read gives; or one part of a file of lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BLOCK = 1 << 20
"""Bytes that are asked for at a time; small enough to stay in a core's cache while they are worked on."""


def blocks(stream: Any, longest: int, part: tuple[int, int] | None = None, read: int = BLOCK) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines and the byte at which each begins; the last line of all may lack its end.

    A line of more than `longest` bytes makes a block of its own, cut off after them. part: only the lines that begin in
    these bytes of the stream, which then must be able to seek. read: bytes that are asked of the stream at a time; when that
    fails, all lines that came whole with what was read before are yielded first.
    """
    offset, stop = part or (0, None)
    if offset:
        stream.seek(offset - 1)
        offset += _pass_over(stream, stop - offset + 1 if stop else None) - 1
    held: list[bytes] = []  # of the line that has begun
    size = 0
    pieces = _pieces(stream, read)
    while stop is None or offset < stop:
        piece = next(pieces, b"")
        end = piece.rfind(b"\n") + 1
        if not end and piece and size + len(piece) <= longest:
            held.append(piece)
            size += len(piece)
            continue
        block = b"".join([*held, piece[:end]]) if end or not piece else b"".join([*held, piece])
        if not block:
            return
        if stop is not None and offset + len(block) > stop:
            block = block[: block.find(b"\n", stop - offset - 1) + 1] or block
        yield block, offset
        offset += len(block)
        held, size = ([piece[end:]], len(piece) - end) if end else ([], 0)
        if not end and piece:
            offset += _pass_over(stream, stop and stop - offset)


def _pieces(stream: Any, read: int) -> Iterator[bytes]:
    """What a stream holds, BLOCK bytes or somewhat more at a time."""
    parts: list[bytes] = []
    size = 0
    failed: Exception | None = None
    while failed is None:
        try:
            part = stream.read1(read)
        except Exception as error:  # whatever it is, what came before counts
            part, failed = b"", error
        parts.append(part)
        size += len(part)
        if size >= BLOCK or (size and not part):
            whole, parts, size = b"".join(parts), [], 0
            yield whole
        elif not part:
            break
    if failed is not None:
        raise failed


def _pass_over(stream: Any, most: int | None) -> int:
    """Read to the end of a line, or somewhat more than `most` bytes of it; return how many bytes that were.

    Without the limit each part of one endless line would read all that follows it.
    """
    count = 0
    while (most is None or count < most) and (piece := stream.readline(BLOCK)):
        count += len(piece)
        if piece.endswith(b"\n"):
            break
    return count

"""Which block of the key/value cache holds what: counted, shared by common prefix, evicted least recently used first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from danlu.serve.executor import BLOCK


class _Node:
    """A full block in the tree of prefixes: its tokens follow those of all nodes above it."""

    __slots__ = ("block", "children", "parent", "tokens", "used")

    def __init__(self, tokens: tuple[int, ...], block: int, parent: _Node | None) -> None:
        self.tokens, self.block, self.parent = tokens, block, parent
        self.children: dict[tuple[int, ...], _Node] = {}
        self.used = 0


class Match(NamedTuple):
    """What of a prompt is in the cache: whole blocks, now held for the caller, and the beginning of one more to copy."""

    blocks: list[int]
    partial: int | None
    """A block whose first `partial_tokens` tokens come next; held too, until the caller has copied and released it."""
    partial_tokens: int


class BlockCache:
    """Blocks counted by who holds them. A full block stays, as a prefix for later requests, until its room is needed."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(reversed(range(blocks)))
        self._holders = [0] * blocks
        self._root = _Node((), -1, None)
        self._nodes: dict[int, _Node] = {}
        self._queue: list[tuple[int, int]] = []
        """(when last used, block) of what may be evicted; entries that are out of date are passed over."""
        self._clock = 0
        self.evicted = 0

    @property
    def held(self) -> int:
        """Blocks that some sequence holds."""
        return sum(map(bool, self._holders))

    @property
    def kept(self) -> int:
        """Blocks in the tree of prefixes."""
        return len(self._nodes)

    def match(self, tokens: Sequence[int]) -> Match:
        """The longest prefix of the tokens that is here; the caller holds its blocks from now on."""
        node, blocks = self._root, []
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            child = node.children.get(tuple(tokens[start : start + BLOCK]))
            if child is None:
                break
            blocks.append(child.block)
            node = child
        partial, common = None, 0
        rest = tuple(tokens[len(blocks) * BLOCK : (len(blocks) + 1) * BLOCK])
        for key, child in node.children.items() if rest else ():
            same = next((at for at, (a, b) in enumerate(zip(key, rest, strict=False)) if a != b), len(rest))
            if same > common:
                partial, common = child.block, same
        for block in blocks if partial is None else [*blocks, partial]:
            self._holders[block] += 1
            self._touch(block)
        return Match(blocks, partial, common)

    def allocate(self) -> int | None:
        """A block of nobody's, which the caller holds; None if all are held."""
        if not self._free and not self._evict():
            return None
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of blocks; those in the tree stay until they are evicted."""
        for block in reversed(blocks):  # the end of a prefix is evicted before its beginning
            self._holders[block] -= 1
            assert self._holders[block] >= 0
            if self._holders[block]:
                continue
            if block in self._nodes:
                self._touch(block)
            else:
                self._free.append(block)

    def keep(self, tokens: Sequence[int], blocks: list[int]) -> None:
        """Put a sequence's full blocks into the tree. Where another sequence's block holds the same, it replaces this one."""
        node = self._root
        for at in range(len(tokens) // BLOCK):
            key = tuple(tokens[at * BLOCK : (at + 1) * BLOCK])
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = self._nodes[blocks[at]] = _Node(key, blocks[at], node)
            elif child.block != blocks[at]:
                self._holders[child.block] += 1
                self.release([blocks[at]])
                blocks[at] = child.block
            node = child

    def _touch(self, block: int) -> None:
        self._clock += 1
        self._nodes[block].used = self._clock
        heapq.heappush(self._queue, (self._clock, block))

    def _evict(self) -> bool:
        """Free the block that nobody holds, that no other follows, and that was not used for longest."""
        while self._queue:
            used, block = heapq.heappop(self._queue)
            node = self._nodes.get(block)
            if node is None or node.used != used or self._holders[block] or node.children:
                continue  # it is queued again when it is released, or when what follows it is gone
            assert node.parent is not None
            del node.parent.children[node.tokens], self._nodes[block]
            if node.parent is not self._root and not node.parent.children:
                heapq.heappush(self._queue, (node.parent.used, node.parent.block))
            self._free.append(block)
            self.evicted += 1
            return True
        return False

"""Documents to token ids at the speed of the processor: reading, encoding and writing overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from danlu.data.arrays import Array
from danlu.data.read import Document
from danlu.data.tokenizer import Tokenizer

BATCH_BYTES = 4 << 20
BATCH_DOCUMENTS = 4096


class Item(NamedTuple):
    """A document on its way into a split."""

    document: Document
    split: str
    text_bytes: int


def encoded(items: Iterable[Item], tokenizer: Tokenizer) -> Iterator[tuple[Item, Array, Array | None]]:
    """Yield every item with its token ids (uint32), begin and end included, in order, and which are supervised; None: all.

    The library encodes a batch on all cores without Python's lock, so meanwhile this thread reads the next batch.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: tuple[list[Item], Future[list[Array]]] | None = None
        for batch in _batches(items):
            future = pool.submit(framed, [item.document.text for item in batch], tokenizer)
            if waiting is not None:
                yield from _unmasked(*waiting)
            waiting = batch, future
        if waiting is not None:
            yield from _unmasked(*waiting)


def _unmasked(batch: list[Item], ids: Future[list[Array]]) -> Iterator[tuple[Item, Array, Array | None]]:
    for item, its in zip(batch, ids.result(), strict=True):
        yield item, its, None


def sampled(items: Iterable[Item]) -> Iterator[tuple[Item, Array, Array | None]]:
    """As ``encoded``, of conversations, whose tokens are made when they are read."""
    for item in items:
        for sample in item.document.samples:
            yield item._replace(text_bytes=len(sample.text.encode("utf-8"))), sample.ids, sample.supervised


def framed(texts: list[str], tokenizer: Tokenizer) -> list[Array]:
    """Token ids of texts, begin and end included."""
    before = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    frame = np.array(before, np.uint32), np.array([tokenizer.end_id], np.uint32)
    return [np.concatenate([frame[0], ids, frame[1]]) for ids in tokenizer.encode_batch(texts)]


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += item.text_bytes
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

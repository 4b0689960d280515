"""Any readable text as a token stream, to evaluate a model on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.data.encode import Item, encoded
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.shards import ShardWriter, token_dtype
from danlu.data.sources import resolve
from danlu.data.stream import TokenStream
from danlu.data.tokenizer import Tokenizer
from danlu.errors import DanluError, UserError
from danlu.plural import many
from danlu.recipe.data_sections import Source


@contextmanager
def text_stream(
    path: str | Path,
    tokenizer: Tokenizer,
    *,
    text: str = "text",
    bad_line_limit: float = 0.01,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[TokenStream]:
    """The documents of a file, folder or glob as a stream, in a temporary folder that goes when the block ends.

    `text` is the field of JSON and Parquet. A file of an unknown kind that is named outright is plain text.
    The stream's text_bytes give a loss per byte.

    Raises:
        UserError: nothing to read, too many bad records, or no text.
        DanluError: the disk of temporary files is full.
    """
    try:
        listing = resolve([Source.model_validate({"path": str(path), "text": text})], any_kind=True)
    except UserError as error:
        raise UserError(str(error).removeprefix("data.sources[0].path: ")) from None
    ledger = Ledger(bad_line_limit)
    for listed in listing.unreadable:
        ledger.skip(*listed)
    items = (Item(document, "text", len(document.text.encode("utf-8"))) for document in documents(listing.files, ledger))
    with tempfile.TemporaryDirectory(prefix="danlu-") as name:
        dtype = token_dtype(tokenizer.vocab_size)
        writer = ShardWriter(Path(name), "text", dtype, 1 << 27)
        try:
            for item, ids, _ in encoded(items, tokenizer):
                writer.add(ids, item.text_bytes)
            split = writer.close()
        except OSError as error:
            raise DanluError(f"{path}: its tokens cannot be written to {name}: {error.strerror}; make room there") from None
        if not split["documents"]:
            raise UserError(f"{path}: no text in {many(ledger.files, 'file')}")
        for example in ledger.examples:
            report(f"bad: {example}")
        yield TokenStream(Path(name), dtype, split)

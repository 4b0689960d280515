"""From lists of files to a saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from danlu.data.curate.linear.fit import LEAST, fit
from danlu.data.curate.linear.model import LONGEST, Linear
from danlu.data.curate.perplexity import model as perplexity
from danlu.data.curate.perplexity.model import Ngrams
from danlu.data.ledger import Ledger
from danlu.data.read import documents
from danlu.data.sources import resolve
from danlu.errors import DanluError, UserError
from danlu.files import why
from danlu.recipe.data_sections import Source

MOST = 1 << 30
"""Characters of one class that are learnt from; training holds all of them in memory."""


def train_from(good: Sequence[str], bad: Sequence[str], to: Path, field: str, seed: int, report: Callable[[str], None]) -> Linear:
    """Train on the documents of two lists of files, folders and globs, and save the model at `to`.

    Raises:
        UserError: an input cannot be read, a class is too small, or `to` cannot be written.
    """
    _check(to)
    classes = [texts_of(paths, field, option, report) for paths, option in ((bad, "--bad"), (good, "--good"))]
    for texts, option in zip(classes, ("--bad", "--good"), strict=True):
        if len(set(texts)) < LEAST:
            raise UserError(f"{option}: {len(set(texts))} different texts; at least {LEAST} are needed, and hundreds are better")
    if shared := set(classes[0]) & set(classes[1]):
        report(f"note: {len(shared):,} texts are in both --good and --bad, and are left out")
        classes = [[text for text in texts if text not in shared] for texts in classes]
    targets = np.repeat([0.0, 1.0], [len(texts) for texts in classes])
    model = fit(classes[0] + classes[1], targets, seed)
    _save(model, to)
    return model


def count_from(good: Sequence[str], to: Path, field: str, report: Callable[[str], None]) -> Ngrams:
    """Make a model of perplexity from a list of files, folders and globs, and save it at `to`.

    Raises:
        UserError: an input cannot be read, there are too few texts, or `to` cannot be written.
    """
    _check(to)
    try:
        model = perplexity.fit(texts_of(good, field, "--good", report))
    except UserError as error:
        raise UserError(f"--good: {str(error).removeprefix('--good: ')}") from None
    _save(model, to)
    return model


def _check(to: Path) -> None:
    if to.is_dir():
        raise UserError(f"--to: {to}: is a folder; name a file, such as {to / 'mine.safetensors'}")
    if not to.absolute().parent.is_dir():
        raise UserError(f"--to: {to}: there is no folder {to.parent}; make it first")


def _save(model: Linear | Ngrams, to: Path) -> None:
    try:
        model.save(to)
    except OSError as error:
        raise DanluError(f"{to}: cannot be written: {why(error)}") from None


def texts_of(paths: Sequence[str], field: str, option: str, report: Callable[[str], None]) -> list[str]:
    """The beginnings of all documents, as far as they count."""
    try:
        listing = resolve([Source(path=path, text=field) for path in paths])
    except UserError as error:
        raise UserError(f"{option}: {str(error).partition('.path: ')[2] or error}") from None
    ledger = Ledger()
    found: list[str] = []
    size = 0
    for document in documents(listing.files, ledger):
        found.append(document.text[:LONGEST])
        size += len(found[-1])
        if size > MOST:
            report(f"note: {option}: {len(found):,} texts are enough; the rest is left aside")
            break
    if ledger.bad:
        report(f"note: {option}: {ledger.bad:,} bad records are left out; the first: {ledger.examples[0]}")
    return found

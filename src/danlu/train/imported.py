"""What can be wrong with imported weights though their shapes fit."""

from __future__ import annotations

from pathlib import Path

from danlu.data import tokenizer as tokenizers
from danlu.data.prepared import Prepared
from danlu.data.tokenizer import FILE
from danlu.errors import UserError
from danlu.files import sha256
from danlu.recipe import Recipe


def tokenizer_warning(weights: Path, prepared: Prepared, rows: int) -> str | None:
    """One line when the run's tokenizer is not the one that the weights of a Hugging Face folder learned; None when it is.

    Where no tokenizer.json lies beside the weights, its size must do: ``rows`` is the embedding's. With the same file, rows that
    no token uses are the publisher's padding, and no cause for a warning.
    """
    beside = weights / FILE
    way_out = f"for its own, give data.tokenizer.path: {weights}"
    if beside.is_file():
        if sha256(beside) == sha256(prepared.tokenizer_path):
            return None
        return f"the run's tokenizer is not {beside}, so that its tokens are not those that the weights have learned; {way_out}"
    if prepared.vocab_size == rows:
        return None
    return (
        f"the run's tokenizer has {prepared.vocab_size:,} tokens and the weights in {weights} have {rows:,} rows, "
        "so that it is hardly theirs; give the one that they were trained with in data.tokenizer.path"
    )


def check_teacher(recipe: Recipe, prepared: Prepared) -> None:
    """UserError: a teacher is to be learned from that has other tokens than the run's, so that its probabilities mean nothing."""
    if recipe.train.objective != "distill" or recipe.train.distill is None:
        return
    folder = Path(recipe.train.distill.teacher).expanduser()
    if recipe.train.distill.cache is not None and not folder.exists():
        return  # its answers tell in which tokens they are
    if not (folder / FILE).is_file():
        raise UserError(f"train.distill.teacher: {folder} has no {FILE}, so that nothing says what its tokens are; put it there")
    if sha256(folder / FILE) == sha256(prepared.tokenizer_path):
        return
    theirs, ours = (tokenizers.load(place).vocabulary for place in (folder, prepared.tokenizer_path))
    if theirs == ours:
        return
    number = min(number for number in theirs.keys() | ours.keys() if theirs.get(number) != ours.get(number))
    told = f"its token {number} is {theirs.get(number)!r}, and the run's {ours.get(number)!r}"
    raise UserError(f"train.distill.teacher: {told}, so that they mean other texts; give data.tokenizer.path: {folder}")

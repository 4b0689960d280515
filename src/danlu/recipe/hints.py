"""The way out of an unknown key or an unknown choice: the nearest valid one, and its section."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from danlu.recipe.fields import Path, annotation_at, dotted, every_field, listed, section_class
from danlu.recipe.other_names import OTHER_NAMES, OTHER_VALUES


class Hint(NamedTuple):
    """What to say about an unknown key, and the fields that it may have meant."""

    text: str
    meant: tuple[str, ...] = ()


def unknown_key(path: Path) -> Hint:
    """The hint for the key that ends `path`, where the section above it exists and has no such key."""
    key, above = str(path[-1]), path[:-1]
    section = section_class(annotation_at(above))
    siblings = list(section.model_fields) if section else []
    word = key.strip().replace("-", "_").lower()
    if word in siblings:
        return _did_you_mean([dotted((*above, word))])
    if "." in key and annotation_at(tuple(int(part) if part.isdigit() else part for part in key.split("."))) is not None:
        return Hint(f"the dots of {key} are for the command line; in a file write the sections as nested keys", (key,))
    if elsewhere := [dotted(entry.path) for entry in every_field() if entry.path[-1] == word]:
        return _did_you_mean(elsewhere)
    if word in OTHER_NAMES:
        paths, note = OTHER_NAMES[word]
        return Hint(f"danlu has it as {listed(paths, 'and')}" + (f" ({note})" if note else ""), paths)
    if near := difflib.get_close_matches(word, siblings, n=1, cutoff=0.6):
        return _did_you_mean([dotted((*above, near[0]))])
    if far := _nearest_anywhere(word):
        return _did_you_mean(far)
    return Hint(f"the keys of {dotted(above) or 'a recipe'} are {listed(siblings, 'and')}")


def nearest_choice(value: object, choices: Sequence[str]) -> str | None:
    """The choice that a mistaken value is closest to, or None."""
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    if OTHER_VALUES.get(word) in choices:
        return OTHER_VALUES[word]
    lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(word, list(lower), n=1, cutoff=0.6)
    return lower[near[0]] if near else None


def _nearest_anywhere(word: str) -> list[str]:
    """Fields of any section that read almost the same, or that the word is a whole part of (``warmup`` in ``warmup_steps``)."""
    names = {str(entry.path[-1]) for entry in every_field()}
    close = difflib.get_close_matches(word, sorted(names), n=1, cutoff=0.75)
    wanted = set(close) or {name for name in names if len(word) > 3 and word in name.split("_")}
    return [dotted(entry.path) for entry in every_field() if entry.path[-1] in wanted]


def _did_you_mean(paths: list[str]) -> Hint:
    return Hint(f"did you mean {listed(paths[:4], 'or')}?", tuple(paths))

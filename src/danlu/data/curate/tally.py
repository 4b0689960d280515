"""What a pass over documents saw, in numbers that add up over shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from danlu.data.arrays import Array
from danlu.data.read import Document

SAMPLES, EXCERPT = 5, 300
"""Rejected documents that are shown for a rule, and the characters of each."""
NO_LANGUAGE = "none"
LANGUAGE = "S4"
"""How an array holds the codes of languages, in four bytes of ASCII; empty: not known."""
SCORE_STEPS = 20
"""Parts into which scores between 0 and 1 are counted."""


@dataclass
class Distribution:
    """How documents spread over lengths, languages and scores."""

    lengths: Counter[int] = field(default_factory=Counter)
    """By n for texts of 2^(n-1) to 2^n - 1 bytes of UTF-8."""
    languages: Counter[str] = field(default_factory=Counter)
    scores: Counter[int] = field(default_factory=Counter)
    """By twentieths, downwards, of scores."""

    def count(self, lengths: Array, languages: Array, scores: Array) -> None:
        """Count documents: bytes, codes (LANGUAGE) and scores of each, (documents,)."""
        self.lengths.update(_counted(np.frexp(lengths.astype(np.float64))[1]))
        codes, counts = np.unique(languages.view(np.uint32), return_counts=True)
        for code, count in zip(codes.view(LANGUAGE).tolist(), counts.tolist(), strict=True):
            self.languages[code.decode() or NO_LANGUAGE] += count
        self.scores.update(_counted(np.floor(scores * SCORE_STEPS)))

    def add(self, other: Mapping[str, Mapping[str, int]]) -> None:
        """Add what another one's `as_dict` says."""
        self.lengths.update({int(key): value for key, value in other["lengths"].items()})
        self.languages.update(other["languages"])
        self.scores.update({int(key): value for key, value in other["scores"].items()})

    def as_dict(self) -> dict[str, dict[str, int]]:
        counters: dict[str, Counter[Any]] = {"lengths": self.lengths, "languages": self.languages, "scores": self.scores}
        return {name: {str(key): counts[key] for key in sorted(counts)} for name, counts in counters.items()}


def _counted(values: Array) -> dict[int, int]:
    keys, counts = np.unique(values.astype(np.int64), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


@dataclass
class Tally:
    """Documents as they were when the stages had seen them, and those that were turned down, by rule."""

    seen: Distribution = field(default_factory=Distribution)
    rules: Counter[str] = field(default_factory=Counter)
    """Documents by stage and rule."""
    rule_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of text of those, as they were when the rule saw them."""
    changed: Counter[str] = field(default_factory=Counter)
    """Documents by the stage that changed their text."""
    changed_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes that they grew by."""
    replaced: Counter[str] = field(default_factory=Counter)
    """Placeholders of personal data that were put in, by kind."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The first few of each rule."""

    def read(self, documents: Sequence[Document], lengths: Array) -> None:
        """Count documents, once each, when it is known what becomes of them in this pass; `lengths` are bytes."""
        languages = np.array([document.language.encode() for document in documents], LANGUAGE)
        self.seen.count(lengths, languages, np.array([document.score for document in documents]))

    def change(self, stage: str, before: str, after: str) -> None:
        """Count a document whose text a stage changed."""
        self.changed[stage] += 1
        self.changed_bytes[stage] += len(after.encode()) - len(before.encode())

    def resized(self, stage: str, before: Array, after: Array) -> None:
        """Count documents whose text a stage changed, by their bytes, (documents,); those of the same size are the others."""
        self.changed[stage] += int((before != after).sum())
        self.changed_bytes[stage] += int(after.sum() - before.sum())

    def wants(self, rule: str) -> bool:
        """Whether there is room for another sample of the rule."""
        return len(self.samples.get(rule, ())) < SAMPLES

    def turned_down(self, rule: str, value: float | str, place: str, text: str, size: int) -> None:
        """Count one document by the rule, `size` bytes of text of which `text` may be a part."""
        self.count(rule, 1, size)
        if self.wants(rule):
            self.show(rule, value, place, text)

    def count(self, rule: str, documents: int, size: int) -> None:
        """Count documents by the rule, of `size` bytes of text together."""
        if documents:
            self.rules[rule] += documents
            self.rule_bytes[rule] += size

    def show(self, rule: str, value: float | str, place: str, text: str) -> None:
        """Keep the beginning of a document as a sample of the rule."""
        self.samples.setdefault(rule, []).append({"value": value, "place": place, "text": text[:EXCERPT]})

    def add(self, other: Mapping[str, Any]) -> None:
        """Add what another one's `as_dict` says; of the samples the first stay."""
        self.seen.add(other["seen"])
        self.rules.update(other["rules"])
        self.rule_bytes.update(other["rule_bytes"])
        self.changed.update(other["changed"])
        self.changed_bytes.update(other["changed_bytes"])
        self.replaced.update(other.get("replaced", {}))
        for rule, samples in other["samples"].items():
            mine = self.samples.setdefault(rule, [])
            mine += samples[: SAMPLES - len(mine)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "seen": self.seen.as_dict(),
            "rules": dict(sorted(self.rules.items())),
            "rule_bytes": dict(sorted(self.rule_bytes.items())),
            "changed": dict(sorted(self.changed.items())),
            "changed_bytes": dict(sorted(self.changed_bytes.items())),
            "replaced": dict(sorted(self.replaced.items())),
            "samples": dict(sorted(self.samples.items())),
        }

"""Validation text is in other languages than training text."""

from __future__ import annotations

from collections import Counter

import numpy as np

from danlu.data.arrays import Array
from danlu.data.curate.language import detect
from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.chance import DRAWS, HOLD_OUT, LEAST, SIGMAS, difference, spread
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text

DISTANCE = 0.1
MOST = 500
HEAD = 1000
"""Characters by which a document's language is told."""


def check(material: Material) -> Finding | None:
    sides = []
    for sample in (material.train, material.validation):
        chosen = spread(len(sample))
        chosen = chosen[:: 1 + len(chosen) // MOST]
        sides.append([detect(sample.texts[at][:HEAD])[0] for at in chosen])
    codes, languages = np.unique(sides[0] + sides[1], return_inverse=True)

    def statistic(mask: Array) -> float:
        first = np.bincount(languages[mask], minlength=len(codes)) / mask.sum()
        second = np.bincount(languages[~mask], minlength=len(codes)) / (~mask).sum()
        return float(np.abs(first - second).sum() / 2)

    found = difference(statistic, len(sides[0]), len(sides[1]))
    if not found.beyond(DISTANCE):
        return None
    told = [", ".join(f"{code} {count / len(side):.0%}" for code, count in Counter(side).most_common(3)) for side in sides]
    return Finding(
        "shift_of_languages",
        Severity.WARNING,
        0.85,
        Text("validation text is in other languages than training text", "验证文本与训练文本的语言构成不同"),
        (
            Text(
                f"training: {told[0]}; validation: {told[1]}; total variation {found.observed:.2f}, by chance "
                f"{found.mean:.2f} ± {found.deviation:.2f}",
                f"训练集：{told[0]}；验证集：{told[1]}；总变差 {found.observed:.2f}，"
                f"随机为 {found.mean:.2f} ± {found.deviation:.2f}",
            ),
        ),
        HOLD_OUT,
    )


AUDIT = Audit(
    "shift_of_languages",
    Text("validation data in other languages than training data", "验证集与训练集语言不一致"),
    f"texts; {LEAST} documents of each split",
    f"a total variation {DISTANCE} and {SIGMAS:g} standard deviations above what {DRAWS} random splits give",
    "sampling error by permutation of documents; languages by n-grams, whose mistakes fall on both splits alike",
    Severity.WARNING,
    check,
    explains=frozenset({"shift_of_tokens", "shift_of_lengths"}),
)

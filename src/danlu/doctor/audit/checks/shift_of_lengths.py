"""Validation documents are longer or shorter than training documents.

Characters count: a tokenizer that was trained on the training text cuts other text into more tokens.
"""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.chance import DRAWS, HOLD_OUT, LEAST, SIGMAS, difference, spread
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text

DISTANCE = 0.2


def check(material: Material) -> Finding | None:
    sides = [[len(sample.texts[at]) for at in spread(len(sample))] for sample in (material.train, material.validation)]
    lengths = np.concatenate(sides)
    order = np.argsort(lengths, kind="stable")
    last = np.r_[np.diff(lengths[order]) > 0, True]  # of equal lengths the last

    def statistic(mask: Array) -> float:
        first = mask[order]
        gap = np.cumsum(first) / first.sum() - np.cumsum(~first) / (~first).sum()
        return float(np.abs(gap[last]).max())

    found = difference(statistic, len(sides[0]), len(sides[1]))
    if not found.beyond(DISTANCE):
        return None
    medians = [float(np.median(side)) for side in sides]
    return Finding(
        "shift_of_lengths",
        Severity.WARNING,
        0.75,
        Text("validation documents have other lengths than training documents", "验证文档与训练文档的长度分布不同"),
        (
            Text(
                f"median {medians[1]:,.0f} characters in validation, {medians[0]:,.0f} in training; Kolmogorov-Smirnov distance "
                f"{found.observed:.2f}, by chance {found.mean:.2f} ± {found.deviation:.2f}",
                f"验证集中位数 {medians[1]:,.0f} 个字符，训练集 {medians[0]:,.0f}；KS 距离 {found.observed:.2f}，"
                f"随机为 {found.mean:.2f} ± {found.deviation:.2f}",
            ),
        ),
        HOLD_OUT,
    )


AUDIT = Audit(
    "shift_of_lengths",
    Text("validation documents of other lengths than training documents", "验证文档与训练文档长度不一致"),
    f"{LEAST} documents of each split",
    f"a Kolmogorov-Smirnov distance {DISTANCE} and {SIGMAS:g} standard deviations above what {DRAWS} random splits give",
    "sampling error by permutation of documents",
    Severity.WARNING,
    check,
)

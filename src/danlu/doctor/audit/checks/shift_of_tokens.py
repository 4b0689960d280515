"""Validation text uses other tokens than training text: its loss then tells of another distribution."""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.chance import DRAWS, HOLD_OUT, LEAST, SIGMAS, difference, spread
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text

NATS = 0.02
HEAD = 1024
"""Tokens of a document that are counted, so that one long document is not the whole split."""


def check(material: Material) -> Finding | None:
    sides = [[sample.framed[at][:HEAD] for at in spread(len(sample))] for sample in (material.train, material.validation)]
    documents = sides[0] + sides[1]
    _, tokens = np.unique(np.concatenate(documents), return_inverse=True)
    owner = np.repeat(np.arange(len(documents)), [len(one) for one in documents])
    kinds = int(tokens.max()) + 1
    pairs, counts = np.unique(owner * kinds + tokens, return_counts=True)
    owner, token = np.divmod(pairs, kinds)
    both = np.bincount(token, counts)

    def statistic(mask: Array) -> float:
        first = np.bincount(token, counts * mask[owner])
        return divergence(first, both - first)

    found = difference(statistic, len(sides[0]), len(sides[1]))
    if not found.beyond(NATS):
        return None
    return Finding(
        "shift_of_tokens",
        Severity.WARNING,
        0.8,
        Text("validation text uses other tokens than training text", "验证文本与训练文本的 token 分布不同"),
        (
            Text(
                f"Jensen-Shannon divergence {found.observed:.3f} nats; documents dealt out at random give "
                f"{found.mean:.3f} ± {found.deviation:.3f}",
                f"JS 散度 {found.observed:.3f} 奈特；随机划分文档为 {found.mean:.3f} ± {found.deviation:.3f}",
            ),
        ),
        HOLD_OUT,
        {},
        (Text("wanted, to measure one of several domains: then read it as that", "有意只测量某个领域：则按此解读"),),
    )


def divergence(first: Array, second: Array) -> float:
    """Jensen-Shannon divergence of two counts, in nats (Lin 1991)."""
    p, q = first / max(first.sum(), 1.0), second / max(second.sum(), 1.0)
    middle = (p + q) / 2

    def relative(one: Array) -> float:
        used = one > 0
        return float((one[used] * np.log(one[used] / middle[used])).sum())

    return (relative(p) + relative(q)) / 2


AUDIT = Audit(
    "shift_of_tokens",
    Text("validation data of another token distribution than training data", "验证集与训练集的 token 分布不一致"),
    f"prepared data; {LEAST} documents of each split",
    f"{NATS} nats of Jensen-Shannon divergence and {SIGMAS:g} standard deviations above what {DRAWS} random splits of the same "
    "documents give",
    "sampling error by permutation of whole documents; 0.02 nats is what a tenth of the text in another alphabet makes",
    Severity.WARNING,
    check,
    at_start=True,
)

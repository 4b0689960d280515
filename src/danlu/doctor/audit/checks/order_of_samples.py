"""The samples of the first steps lie side by side in the corpus: the order is not shuffled."""

from __future__ import annotations

import numpy as np

from danlu.data import order
from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

SIGMAS = 5.0
LEAST, MOST = 64, 4096


def check(material: Material) -> Finding | None:
    recipe = material.recipe
    samples = (material.need_prepared().train.tokens - 1) // recipe.data.sequence_length
    if samples < LEAST:
        raise NotEnoughData(f"{samples} samples an epoch, {LEAST} are needed")
    asked = min(MOST, samples)
    places = order.sample_indices(np.arange(asked), samples, recipe.train.seed) / samples
    # Of places drawn evenly, neighbours are 1/3 apart on average, with a standard deviation of the root of 1/18.
    apart = float(np.abs(np.diff(places)).mean())
    near = (1 / 3 - apart) / np.sqrt(1 / 18 / len(places))
    # And a tenth of them lies in each tenth of the corpus.
    share = np.histogram(places, 10, (0, 1))[0] / len(places)
    uneven = float(np.abs(share - 0.1).max() / np.sqrt(0.09 / len(places)))
    if near < SIGMAS and uneven < SIGMAS:
        return None
    return Finding(
        "order_of_samples",
        Severity.WARNING,
        0.9,
        Text("the samples are not shuffled", "样本没有打乱"),
        (
            Text(
                f"of the first {len(places):,} samples, one and the next are {apart:.1%} of the corpus apart on average, where "
                f"33% is even; the fullest tenth of the corpus has {share.max():.0%} of them",
                f"前 {len(places):,} 个样本中，相邻两个平均相距语料的 {apart:.1%}（均匀时为 33%）；"
                f"最密的十分之一占 {share.max():.0%}",
            ),
        ),
        Text("shuffle the samples across the whole corpus", "在整个语料范围内打乱样本"),
    )


AUDIT = Audit(
    "order_of_samples",
    Text("an order of samples that is not shuffled", "样本顺序没有打乱"),
    f"prepared data; {LEAST} samples an epoch",
    f"{SIGMAS:g} standard errors from an even draw, over the first {MOST:,} samples: mean distance of neighbours, and counts by "
    "tenth of the corpus",
    "two even draws are 1/3 apart on average, with variance 1/18",
    Severity.WARNING,
    check,
    at_start=True,
)

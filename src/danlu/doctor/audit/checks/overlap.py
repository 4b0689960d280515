"""Held-out documents that are in the training data too, word for word or nearly: validation then measures memory."""

from __future__ import annotations

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.copies import THRESHOLD
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

SHARE = 0.05
"""Of the held-out text. C4 has 4.6 % of near-duplicates between its splits, LM1B 4.9 %, RealNews 14.4 %, Wiki-40B 0.7 %."""
DOCUMENTS = 3
LEAST = 20


def check(material: Material) -> Finding | None:
    validation, train = material.validation, material.train
    if len(validation) < LEAST:
        raise NotEnoughData(f"{len(validation)} held-out documents, {LEAST} are needed")
    owners = material.copies
    trained = set(owners[: len(train)])
    texts = validation.texts
    hit = [text for text, owner in zip(texts, owners[len(train) :], strict=True) if owner in trained]
    share = sum(map(len, hit)) / max(1, sum(map(len, texts)))
    if len(hit) < DOCUMENTS or share < SHARE:
        return None
    exact = len(set(train.texts).intersection(hit))
    seen = "" if train.share == 1 else f"; {train.share:.0%} of the training data was looked at, so that there may be more"
    seen_zh = "" if train.share == 1 else f"；只查看了训练数据的 {train.share:.0%}，实际可能更多"
    first = hit[0][:60].replace("\n", " ")
    return Finding(
        "overlap",
        Severity.WARNING,
        0.9,
        Text(
            f"{share:.0%} of the validation text is in the training data too",
            f"{share:.0%} 的验证文本也在训练数据中",
        ),
        (
            Text(
                f"{len(hit)} of {len(texts)} held-out documents have a copy in the training data, "
                f"{exact} of them word for word{seen}",
                f"{len(texts)} 篇验证文档中有 {len(hit)} 篇在训练数据中有副本，其中 {exact} 篇逐字相同{seen_zh}",
            ),
            Text(f"such as: {first!r}", f"例如：{first!r}"),
        ),
        Text(
            "remove copies before the split, or leave out training documents that repeat held-out ones",
            "划分之前去重，或去掉与验证文档重复的训练文档",
        ),
        {"data.curate.dedup.threshold": THRESHOLD},
    )


AUDIT = Audit(
    "overlap",
    Text("validation documents in the training data, exact or near", "验证文档出现在训练数据中（完全或近似重复）"),
    f"texts; {LEAST} held-out documents",
    f"{SHARE:.0%} of the held-out text, in {DOCUMENTS} documents or more, with a Jaccard of {THRESHOLD} to a training document",
    "Lee et al. 2022, arXiv:2107.06499, table 2: such copies are 4.6 % of C4's validation and 14.4 % of RealNews'",
    Severity.WARNING,
    check,
)

"""Training documents that are copies of one another."""

from __future__ import annotations

from collections import Counter

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.copies import THRESHOLD
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

SHARE = 0.15
LEAST = 100


def check(material: Material) -> Finding | None:
    if any(source.weight > 1 for source in material.recipe.data.sources) and material.prepared is not None:
        raise NotEnoughData("a source has a weight above 1, so that its documents are repeated on purpose")
    texts = material.train.texts
    if len(texts) < LEAST:
        raise NotEnoughData(f"{len(texts)} training documents, {LEAST} are needed")
    owners = material.copies[: len(texts)]
    again = [len(text) for number, (text, owner) in enumerate(zip(texts, owners, strict=True)) if owner != number]
    share = sum(again) / max(1, sum(map(len, texts)))
    if share < SHARE:
        return None
    owner, times = Counter(owners).most_common(1)[0]
    first = texts[owner][:60].replace("\n", " ")
    looked = f"{material.train.share:.0%} of the training data was looked at"
    return Finding(
        "duplicates",
        Severity.WARNING,
        0.9,
        Text(f"{share:.0%} of the training text are copies", f"{share:.0%} 的训练文本是副本"),
        (
            Text(
                f"{len(again)} of {len(texts)} documents copy another one; {looked}",
                f"{len(texts)} 篇文档中有 {len(again)} 篇是副本；查看了训练数据的 {material.train.share:.0%}",
            ),
            Text(f"the most frequent is there {times} times: {first!r}", f"最多的一篇出现 {times} 次：{first!r}"),
        ),
        Text("remove near-duplicates when the data is prepared", "准备数据时去除近似重复"),
        {"data.curate.dedup.threshold": THRESHOLD},
        (Text("repeated on purpose, by listing a source twice", "有意重复：同一来源列出多次"),),
    )


AUDIT = Audit(
    "duplicates",
    Text("copies among the training documents", "训练文档中的副本"),
    f"texts; {LEAST} training documents; no source with a weight above 1",
    f"{SHARE:.0%} of the text in documents with a Jaccard of {THRESHOLD} to an earlier one",
    "above the 13.6 % of RealNews, the most in Lee et al. 2022, arXiv:2107.06499, table 2; C4 has 3.0 %",
    Severity.WARNING,
    check,
    explains=frozenset({"overlap"}),
)

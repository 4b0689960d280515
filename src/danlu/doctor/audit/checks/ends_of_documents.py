"""Documents without their end token, or samples full of one repeated token, such as padding that came with the text."""

from __future__ import annotations

import numpy as np

from danlu.data.arrays import Array
from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

MISSING = 0.01
RUN = 128
"""Equal tokens in a row from which on they are filling and no text."""
FILLING = 0.02
LEAST = 20


def check(material: Material) -> Finding | None:
    prepared, documents = material.need_prepared(), material.train.framed
    if len(documents) < LEAST:
        raise NotEnoughData(f"{len(documents)} training documents, {LEAST} are needed")
    judged, missing, inside = ends(material, prepared.end_id)
    tokens = np.concatenate(documents)
    filling, token = filled(tokens)
    why = []
    if missing >= MISSING:
        why.append(
            Text(
                f"{missing:.0%} of {judged} documents do not end with the end token ({prepared.end_id})",
                f"{judged} 篇文档中 {missing:.0%} 不以结束 token（{prepared.end_id}）结尾",
            )
        )
    if inside > MISSING * len(documents):
        why.append(
            Text(
                f"the end token occurs {inside} times inside {len(documents)} documents, where nothing ends",
                f"结束 token 在 {len(documents)} 篇文档内部出现 {inside} 次",
            )
        )
    if filling >= FILLING:
        shown = material.tokenizer.decode([token])
        why.append(
            Text(
                f"{filling:.0%} of the tokens stand in runs of {RUN} or more of one token, mostly {token} ({shown!r}), and all "
                "are trained on",
                f"{filling:.0%} 的 token 处于 {RUN} 个以上的相同 token 串中，主要是 {token}（{shown!r}），且都参与训练",
            )
        )
    if not why:
        return None
    return Finding(
        "ends_of_documents",
        Severity.WARNING,
        0.85,
        Text("the frame of the documents is wrong: ends or padding", "文档边界有误：结束符或填充"),
        tuple(why),
        Text(
            "prepare the data again from text without padding, with the end token in data.tokenizer.end",
            "用不含填充的文本重新准备数据，并在 data.tokenizer.end 中给出结束 token",
        ),
    )


def ends(material: Material, end_id: int) -> tuple[int, float, int]:
    """(documents that can be judged, share of them without an end, how many ends are inside documents)."""
    documents = material.train.framed
    # The last document of a stretch may be cut.
    whole = [one for one in documents[:-1] if len(one)] if material.train.share < 1 else documents
    if material.recipe.train.samples != "text":
        # Every turn may end with it, a line end behind; and a conversation that is too long is cut.
        uncut = [one for one in whole if len(one) <= material.recipe.data.sequence_length]
        return len(uncut), sum(end_id not in one for one in uncut) / max(1, len(uncut)), 0
    missing = sum(int(one[-1]) != end_id for one in whole)
    return len(whole), missing / len(whole), sum(int((one[:-1] == end_id).sum()) for one in documents)


def filled(tokens: Array) -> tuple[float, int]:
    """Share of the tokens that stand in runs of RUN or more, and the token that most of them are."""
    starts = np.r_[0, np.flatnonzero(np.diff(tokens.astype(np.int64))) + 1]
    lengths = np.diff(np.r_[starts, len(tokens)])
    long = lengths >= RUN
    if not long.any():
        return 0.0, -1
    which = tokens[starts[long]].astype(np.int64)
    return float(lengths[long].sum() / len(tokens)), int(np.bincount(which, lengths[long]).argmax())


AUDIT = Audit(
    "ends_of_documents",
    Text("documents without an end, or padding that is trained on", "文档缺少结束符，或填充参与训练"),
    f"prepared data; {LEAST} training documents",
    f"{MISSING:.0%} of the documents without an end or with one inside, or {FILLING:.0%} of the tokens in runs of {RUN}",
    "definition: danlu ends each document with one token, and packs documents without filling",
    Severity.WARNING,
    check,
    at_start=True,
)

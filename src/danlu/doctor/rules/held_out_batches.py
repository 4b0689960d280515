"""Rows that validation measures are trained on."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "batch/held_out"
ROWS, SAMPLES, BATCH = "run.held_out_rows", "run.epoch_samples", "train.global_batch"
SHARE = 0.05
LEAST = 3


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(SIGNAL).finite
    rows, samples, batch = (evidence.number(name) for name in (ROWS, SAMPLES, BATCH))
    if not rows or samples is None or batch is None:
        raise NotEnoughData(f"{ROWS}, {SAMPLES} and {BATCH} are not all known")
    met = float(one.values.sum()) * batch
    share = min(1.0, float(one.values.mean()) * samples / rows)
    if met < LEAST or share < SHARE:
        return None
    step = int(one.steps[int((one.values > 0).argmax())])
    return Finding(
        "held_out_batches",
        Severity.WARNING,
        0.95,
        Text("validation measures rows that are trained on", "验证所用的样本也在训练中"),
        (
            Text(
                f"{met:.0f} rows of the batches so far are rows of the validation, token for token, the first at step {step}; "
                f"at that rate an epoch holds {share:.0%} of the {rows:.0f} that validation measures",
                f"至今的批次中有 {met:.0f} 个样本与验证样本逐 token 相同，首次出现在第 {step} 步；"
                f"照此一轮训练将包含 {rows:.0f} 个验证样本中的 {share:.0%}",
            ),
        ),
        Text(
            "split documents before they are packed, and let validation read its own part alone",
            "先划分文档再打包，并确保验证只读取自己的部分",
        ),
        {},
        (
            Text(
                "copies of documents on both sides of the split: danlu doctor audit tells",
                "划分两侧有重复文档：danlu doctor audit 可查",
            ),
        ),
        step,
    )


RULE = Rule(
    "held_out_batches",
    Text("batches of what validation measures", "训练批次包含验证样本"),
    (SIGNAL,),
    f"{SHARE:.0%} of the validation's rows in an epoch, at the rate so far, and {LEAST} of them seen",
    "as the audit `overlap` of documents; rows of text that are equal by chance are rare",
    "a look into a set of hashes for each sample a step, and a pass over the validation's tokens ahead of the first",
    Severity.WARNING,
    check,
    frozenset({"validation_below_training"}),
)

"""The targets are not the next tokens, or the model was trained as if they were not."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series

RIGHT, OTHERS = 1, (0, 2)
SHARE = 0.9
BETTER = 0.85
"""Loss at another offset / at the right one: some dozen tokens are tried, whose mean varies by a tenth."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    in_batch = [evidence.get(f"batch/target_offset_{offset}") for offset in range(3)]
    asked = [evidence.get(f"probe/offset_{offset}") for offset in range(3)]
    if any(one is None for one in in_batch) and any(one is None for one in asked):
        raise NotEnoughData("neither the targets' offset nor the model's losses at other offsets are recorded")
    for told, kind in ((_of_batches, in_batch), (_of_model, asked)):
        series = [one.finite for one in kind if one is not None]
        if len(series) == 3 and (what := told(series)) is not None:
            offset, step, why = what
            return _finding(offset, step, why)
    return None


def _of_batches(series: list[Series]) -> tuple[int, int, Text] | None:
    right = series[RIGHT]
    wrong = np.flatnonzero(right.values < SHARE)
    if not len(wrong):
        return None
    step = int(right.steps[wrong[0]])
    shares = [float(one.values[min(wrong[0], len(one) - 1)]) for one in series]
    offset = int(np.argmax(shares))
    return (
        offset if shares[offset] >= SHARE else -1,
        step,
        Text(
            f"at step {step}, {shares[1]:.0%} of the targets are the next token, {shares[0]:.0%} their own input, "
            f"{shares[2]:.0%} the token after the next",
            f"第 {step} 步，{shares[1]:.0%} 的目标是下一个 token，{shares[0]:.0%} 是输入本身，{shares[2]:.0%} 是再下一个 token",
        ),
    )


def _of_model(series: list[Series]) -> tuple[int, int, Text] | None:
    steps = np.intersect1d(np.intersect1d(series[0].steps, series[1].steps), series[2].steps)
    first: list[float] | None = None
    before = RIGHT
    for step in steps:
        losses = [float(one.values[np.searchsorted(one.steps, step)]) for one in series]
        first = first or losses
        gained = [begun - now for begun, now in zip(first, losses, strict=True)]
        best = int(np.argmin(losses))
        # Tied embeddings prefer the input itself before they have learned; training must not take them further there.
        if losses[best] > BETTER * losses[RIGHT] or gained[best] <= gained[RIGHT]:
            best = RIGHT
        wrong, before = best != RIGHT and best == before, best
        if not wrong:
            continue
        return (
            best,
            int(step),
            Text(
                f"at step {step} the model's loss is {losses[0]:.3g} for the input itself, {losses[1]:.3g} for the next token, "
                f"{losses[2]:.3g} for the one after it",
                f"第 {step} 步，模型对输入本身的损失为 {losses[0]:.3g}，对下一个 token 为 {losses[1]:.3g}，对再下一个为 "
                f"{losses[2]:.3g}",
            ),
        )
    return None


def _finding(offset: int, step: int, why: Text) -> Finding:
    verdicts = {
        0: Text("labels are not shifted: the model learns to repeat its input", "标签没有右移：模型在学习复读输入"),
        2: Text("labels are shifted twice: the model skips a token", "标签右移了两次：模型跳过了一个 token"),
        -1: Text("targets are not the tokens that follow", "目标不是后续的 token"),
    }
    return Finding(
        "label_offset",
        Severity.CRITICAL,
        0.97,
        verdicts[offset],
        (why,),
        Text("shift labels against inputs exactly once, in the data or in the loss", "标签只应在数据或损失中右移一次"),
        {},
        (
            Text(
                "a task whose targets are not its own next tokens: then this is right", "目标本就不是下一个 token 的任务：则无误"
            ),
        ),
        step,
    )


RULE = Rule(
    "label_offset",
    Text("labels that are shifted twice, or not at all, or belong to other inputs", "标签错位"),
    ("batch/target_offset_K | probe/offset_K",),
    f"fewer than {SHARE:.0%} of the targets are the next token, or at another offset "
    f"the model has come to {BETTER:.0%} of the loss or less, in two probes in a row",
    "a definition of next-token prediction",
    "one comparison of the batch a step; three passes over a few rows a probe",
    Severity.CRITICAL,
    check,
    frozenset(
        {
            "end_unsupervised",
            "exploding_gradients",
            "first_loss",
            "loss_mismatch",
            "not_learning",
            "overfitting",
            "plateau",
            "slow_descent",
            "validation_below_training",
        }
    ),
)

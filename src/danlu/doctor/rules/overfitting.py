"""The validation loss rises while the training loss goes on falling."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

POINTS = 6
GENERALISATION_LOSS = 0.05
SIGMAS = 3.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    validation = evidence.need(names.VALIDATION, POINTS).finite
    values = validation.values
    if (values <= 0).any():
        raise NotEnoughData(f"{names.VALIDATION} is not positive, so its rise has no scale")
    level = smoothed(values)
    best = int(np.argmin(level))
    rise = float(level[-2:].min() / level[best] - 1)
    after = level[best:]
    noise = validation.noise / float(level[best])
    if rise < max(GENERALISATION_LOSS, SIGMAS * noise / np.sqrt(width(len(values)))) or len(after) < 3:
        return None
    best_step, last_step = int(validation.steps[best]), int(validation.steps[-1])
    train = training_fall(evidence, best_step, last_step)
    if train is None:
        raise NotEnoughData(
            "no training loss reaches from the best validation to the last, so over-fitting cannot be told from divergence"
        )
    name, before, now = train
    if now >= before:
        return None
    fall = 1 - now / before if before > 0 else 0.0
    ratio = Text(
        f"{name} fell from {before:.4g} to {now:.4g} ({fall:.0%})", f"{name} 从 {before:.4g} 降到 {now:.4g}（{fall:.0%}）"
    )
    return Finding(
        "overfitting",
        Severity.WARNING,
        0.9 if name == names.EVALUATED else 0.75,
        Text(f"the model over-fits after step {best_step}", f"模型在第 {best_step} 步之后过拟合"),
        (
            Text(
                f"{names.VALIDATION} was best at step {best_step} with {level[best]:.4g} and is {level[-1]:.4g} "
                f"({rise:+.0%}) at step {last_step}",
                f"{names.VALIDATION} 在第 {best_step} 步最好，为 {level[best]:.4g}；第 {last_step} 步是 "
                f"{level[-1]:.4g}（{rise:+.0%}）",
            ),
            Text(f"meanwhile {ratio.en}", f"同期 {ratio.zh}"),
        ),
        Text(
            f"use the checkpoint nearest step {best_step}; for the next run add data or train for fewer steps, or "
            "raise weight decay",
            f"使用最接近第 {best_step} 步的检查点；下次训练增加数据、减少步数，或提高权重衰减",
        ),
        {"train.steps": best_step},
        (
            Text("divergence: the training loss would rise too", "发散：训练损失也会上升"),
            Text(
                "a validation set of another distribution: it would lie above from the start, not rise",
                "验证集分布不同：会从一开始就偏高，而不是上升",
            ),
        ),
        best_step,
        Chart(names.VALIDATION, validation),
    )


def width(points: int) -> int:
    """Evaluations that a level is taken over: a twentieth, one to nine."""
    return int(np.clip(points // 20, 1, 9))


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred medians; at both ends of what there is."""
    half = width(len(values)) // 2
    return np.array([np.median(values[max(0, at - half) : at + half + 1]) for at in range(len(values))])


def training_fall(evidence: Evidence, best_step: int, last_step: int) -> tuple[str, float, float] | None:
    """(signal, its level about the best validation, its level at the end); evaluations on training data go first."""
    for name in (names.EVALUATED, names.LOSS):
        one = evidence.get(name, POINTS)
        if one is None or one.finite.steps[0] > best_step or one.finite.steps[-1] < best_step + 0.8 * (last_step - best_step):
            continue
        finite = one.finite
        reach = 0.1 * max(last_step - best_step, 1)
        before, now = (
            finite.between(best_step - reach, best_step + reach),
            finite.between(last_step - 2 * reach, last_step + reach),
        )
        if len(before) and len(now):
            return name, float(np.median(before.values)), float(np.median(now.values))
    return None


RULE = Rule(
    "overfitting",
    Text("the validation loss rises while the training loss falls", "训练损失下降而验证损失上升"),
    (names.VALIDATION, f"{names.EVALUATED} | {names.LOSS}"),
    f"validation {GENERALISATION_LOSS:.0%} above its best and {SIGMAS:g} standard deviations of its noise, training "
    "below its level then",
    "generalisation loss GL5 of Prechelt, Early Stopping - but when? (1998)",
    "one pass over the evaluations",
    Severity.WARNING,
    check,
    frozenset({"oscillation"}),
)

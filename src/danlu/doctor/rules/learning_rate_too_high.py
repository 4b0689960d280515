"""The learning rate is too high: instability with a sign that it is the learning rate and not the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SYMPTOMS = (
    "divergence",
    "exploding_gradients",
    "nonfinite",
    "oscillation",
    "not_learning",
    "spike",
    "plateau",
    "slow_descent",
    "warmup_too_short",
)
ONSETS = ("exploding_gradients", "nonfinite", "spike")
"""Whose first step is where it began; a divergence has the step at which the loss was lowest."""
UNSTABLE = ("divergence", "oscillation", *ONSETS)
USUAL = 3e-3
"""Published Adam-trained language models peak between 6e-5 (175B) and 3e-3 (10M): GPT-3, table 2.1, and its successors."""
UPDATE_RATIO = 1e-2
"""RMS of an update / RMS of its weights; about 1e-3 is usual."""


def check(evidence: Evidence, found: Found) -> Finding | None:
    if not evidence.losses(1) and evidence.get(names.GRADIENT) is None:
        raise NotEnoughData("no loss and no gradient norm is recorded")
    seen = {rule: found[rule] for rule in SYMPTOMS if rule in found}
    grave = [finding for finding in seen.values() if finding.severity >= Severity.WARNING]
    if spiking_and_slow(found):
        grave.append(replace(found["slow_descent"], severity=Severity.WARNING))
    if from_batches(found):
        grave = [one for one in grave if one.rule not in UNSTABLE]
    alone = setting(evidence) if evidence.own else None
    if not grave and alone is None:
        return None
    told = (
        setting(evidence),
        risen(evidence, found),
        updates(evidence),
        timing(evidence, found),
        decay(evidence, found),
        several(found),
    )
    signs = [sign for sign in told if sign is not None]
    if not signs:
        return None
    first = min((finding.step for finding in grave if finding.step is not None), default=None)
    worst = max(grave, key=lambda finding: (finding.severity, finding.confidence), default=None)
    return Finding(
        "learning_rate_too_high",
        Severity.WARNING if worst is None else worst.severity,
        min(0.55 + 0.15 * len(signs), 0.95),
        Text("the learning rate is too high", "学习率过高"),
        (*(() if worst is None else worst.why[:1]), *signs),
        *treatment(evidence),
        (
            Text("damaged data: it would strike once, at its own place in the order", "数据损坏：只会在它出现的位置发生一次"),
            Text("too short a warm-up: it would pass once the peak is behind", "预热过短：过了峰值就会消失"),
        ),
        first,
        None if worst is None else worst.chart,
    )


def from_batches(found: Found) -> bool:
    """Whether odd batches came ahead of all that is unstable, which is then no sign of the rate."""
    odd = found.get("odd_batches")
    if odd is None or odd.step is None:
        return False
    begun = [found[rule].step for rule in ONSETS if rule in found]
    return all(step is None or step >= odd.step for step in begun)


def treatment(evidence: Evidence) -> tuple[Text, dict[str, float]]:
    """What to do about it, and the change of the recipe: a third would not help a rate that is far outside."""
    if setting(evidence) is not None and evidence.own:
        return Text("start from the highest usual rate, or from less", "从常用的最高值或更低开始"), {names.RATE_SETTING: USUAL}
    said = Text("divide the learning rate by 3 and compare the first few hundred steps", "把学习率除以 3，比较最初几百步")
    return said, evidence.scaled(names.RATE_SETTING, 1 / 3)


def setting(evidence: Evidence) -> Text | None:
    """The setting is far outside what is used; ten times, since optimizers differ."""
    rate = evidence.number(names.RATE_SETTING)
    if rate is None or rate < 10 * USUAL:
        return None
    return Text(
        f"the learning rate is {rate:.3g}; {USUAL:g} is the highest usual peak", f"学习率为 {rate:.3g}；常用峰值最高为 {USUAL:g}"
    )


def risen(evidence: Evidence, found: Found) -> Text | None:
    """The loss is above that of an untrained model, which neither labels nor a small rate bring about."""
    one = evidence.get(names.LOSS, 50)
    if "not_learning" not in found or one is None:
        return None
    share = one.finite.share_above_first(3.0)
    if share < 0.5:
        return None
    return Text(
        f"{names.LOSS} is above its first value for {share:.0%} of the steps: updates made the model worse than untrained",
        f"{names.LOSS} 在 {share:.0%} 的步数里高于初值：更新使模型比未训练时更差",
    )


def updates(evidence: Evidence) -> Text | None:
    """Updates are large beside the weights."""
    ratios = [float(np.median(one.finite.values)) for one in evidence.matching("layer/", "/update_ratio").values()]
    if not ratios or np.median(ratios) < UPDATE_RATIO:
        return None
    ratio = float(np.median(ratios))
    return Text(f"updates are {ratio:.2g} of the weights; 1e-3 is usual", f"更新量是权重的 {ratio:.2g} 倍；通常为 1e-3")


def timing(evidence: Evidence, found: Found) -> Text | None:
    """It began while the learning rate was near its peak for the first time."""
    end = evidence.warmup_end()
    steps = [found[rule].step for rule in ("spike", "divergence", "exploding_gradients", "nonfinite") if rule in found]
    near = [step for step in steps if step is not None and end and 0.2 * end <= step <= 2 * end]
    if not near:
        return None
    return Text(f"it began at step {min(near)}; the warm-up ends at step {end}", f"始于第 {min(near)} 步；预热在第 {end} 步结束")


def decay(evidence: Evidence, found: Found) -> Text | None:
    """It calmed down as the learning rate fell."""
    one = evidence.get(names.VALIDATION, 12)
    if one is None or "oscillation" not in found:
        return None
    values = np.log(np.maximum(one.finite.values, 1e-30))
    first, last = len(values) // 4, len(values) - len(values) // 6
    rises = np.maximum(np.diff(values), 0.0)
    early, late = float(rises[first:last].mean()), float(rises[last:].mean())
    if late > 0.25 * early or np.median(values[last:]) > np.median(values[first:last]):
        return None
    return Text(
        f"validation rose by {early:.1%} an evaluation in the middle of the run and by {late:.1%} in its last "
        "sixth, where a decaying rate is lowest",
        f"验证损失在训练中段平均每次评估回升 {early:.1%}，在学习率衰减到最低的最后六分之一只回升 {late:.1%}",
    )


def spiking_and_slow(found: Found) -> bool:
    """Either may be harmless; together they are what a rate beyond the stable one looks like."""
    return "slow_descent" in found and "spike" in found


def several(found: Found) -> Text | None:
    """Loss and gradients are unstable together, or the loss is unstable and slow."""
    if spiking_and_slow(found):
        return Text("the loss spikes and falls slowly between", "损失出现尖峰，其间又下降缓慢")
    gradients = found.get("exploding_gradients") or found.get("nonfinite")
    losses = [rule for rule in ("divergence", "oscillation", "spike", "not_learning") if rule in found]
    if gradients is None or not losses:
        return None
    return Text(
        f"loss and gradient norm are unstable together ({gradients.rule}, {', '.join(losses)})",
        f"损失与梯度范数同时不稳定（{gradients.rule}、{'、'.join(losses)}）",
    )


RULE = Rule(
    "learning_rate_too_high",
    Text("instability that the learning rate explains", "学习率过高造成的不稳定"),
    (f"{names.LOSS} | {names.VALIDATION} | {names.GRADIENT}",),
    f"a symptom and one sign: the setting is 10 times the highest usual ({USUAL:g}), updates are over "
    f"{UPDATE_RATIO:g} of the weights, it began "
    "about the end of the warm-up, the loss is above its first value, it calmed as the rate fell, or loss and "
    "gradients are unstable together; of AdamW as it is here, such a setting alone",
    "learning rates of published models (GPT-3, arXiv:2005.14165, table 2.1); usual update ratio 1e-3",
    "reads other findings",
    Severity.CRITICAL,
    check,
    frozenset({*SYMPTOMS, "forgetting"}),
    frozenset({"odd_batches"}),
)

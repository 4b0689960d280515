"""The learning rate is far too low: updates are tiny, or the loss creeps along a straight line and nothing is unstable."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

UPDATE_RATIO = 1e-5
USUAL = 1e-5
"""Fine-tuning uses 1e-5 to 5e-5, pre-training 6e-5 and more (GPT-3, arXiv:2005.14165, table 2.1)."""
DRAWN = 6e-5
UNSTABLE = ("divergence", "exploding_gradients", "nonfinite", "oscillation", "spike")
KEPT = 0.75
POINTS = 3


def check(evidence: Evidence, found: Found) -> Finding | None:
    layers = at_peak(evidence)
    loss = evidence.get(names.LOSS, 100)
    if not layers and loss is None:
        raise NotEnoughData(f"{names.LOSS} has fewer than 100 points and no update ratio is recorded")
    ratio = float(np.median(list(layers.values()))) if layers else None
    tiny = ratio is not None and ratio < UPDATE_RATIO
    slow = found.get("slow_descent")
    kept = loss is not None and loss.finite.values[-1] > KEPT * loss.finite.values[0]
    creeping = slow is not None and kept and not any(rule in found for rule in UNSTABLE)
    rate = evidence.number(names.RATE_SETTING)
    flat = found.get("not_learning")
    small = rate is not None and ((flat is not None and rate < USUAL) or below_all(evidence, rate))
    if not tiny and not small and not (creeping and flat is None):
        return None
    symptom = slow or flat
    why = list(symptom.why) if symptom is not None else []
    if small:
        why.append(
            Text(
                f"the learning rate is {rate:.1e}; {lowest(evidence):g} is the lowest usual peak",
                f"学习率为 {rate:.1e}；常用峰值最低为 {lowest(evidence):g}",
            )
        )
    if ratio is not None and tiny:
        why.append(Text(f"updates are {ratio:.1e} of the weights; 1e-3 is usual", f"更新量是权重的 {ratio:.1e} 倍；通常为 1e-3"))
    return Finding(
        "learning_rate_too_low",
        symptom.severity if symptom is not None and not tiny else Severity.WARNING,
        0.9 if tiny or small else 0.65,
        Text("the learning rate is too low", "学习率过低"),
        tuple(why),
        Text("multiply the learning rate by 10 in a short trial", "把学习率乘以 10 短跑一次"),
        evidence.scaled(names.RATE_SETTING, 10),
        (Text("frozen parameters: some layers would not move at all", "参数被冻结：部分层完全不动"),),
        symptom.step if symptom is not None else None,
        Chart(names.LOSS, loss) if loss is not None else None,
    )


def lowest(evidence: Evidence) -> float:
    """Published peaks from random weights begin higher than those of fine-tuning."""
    return DRAWN if evidence.facts.get("run.drawn") else USUAL


def below_all(evidence: Evidence, rate: float) -> bool:
    """Of AdamW as it is here, a tenth of what any published run has."""
    return evidence.own and "run.drawn" in evidence.facts and rate < 0.1 * lowest(evidence)


def at_peak(evidence: Evidence) -> dict[str, float]:
    """Median update ratio by layer since the end of the warm-up, over POINTS looks or more."""
    end = evidence.warmup_end() or 0
    since = {name: one.finite.between(end, np.inf) for name, one in evidence.matching("layer/", "/update_ratio").items()}
    return {name: float(np.median(one.values)) for name, one in since.items() if len(one) >= POINTS}


RULE = Rule(
    "learning_rate_too_low",
    Text("a learning rate that hardly moves the model", "学习率过低，模型几乎不动"),
    (f"{names.LOSS} | layer/NAME/update_ratio",),
    f"updates below {UPDATE_RATIO:g} of the weights in the median layer at {POINTS} looks "
    f"since the warm-up, or a loss that stays where it began at a "
    f"rate below {USUAL:g}, or a slow descent with over {KEPT:.0%} of "
    "the first loss left and nothing unstable",
    "updates of about 1e-3 of the weights are usual; two orders less cannot move them within a run",
    "reads other findings and one median a layer",
    Severity.WARNING,
    check,
    frozenset({"slow_descent", "plateau", "not_learning"}),
    frozenset(UNSTABLE),
)

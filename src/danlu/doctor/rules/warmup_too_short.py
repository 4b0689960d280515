"""A disturbance about the end of the warm-up that passes: the model was not ready for the peak learning rate."""

from __future__ import annotations

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SYMPTOMS = ("spike", "exploding_gradients")


def check(evidence: Evidence, found: Found) -> Finding | None:
    end = evidence.warmup_end()
    if end is None:
        raise NotEnoughData("the end of the warm-up is not known")
    evidence.need(names.LOSS, 30)
    total = evidence.number("train.steps") or evidence.last_step()
    for rule in SYMPTOMS:
        symptom = found.get(rule)
        if symptom is None or symptom.step is None or not max(end // 2, 1) <= symptom.step <= 2 * end + 10:
            continue
        longer = max(round(0.1 * total), 2 * end, 10)
        return Finding(
            "warmup_too_short",
            symptom.severity,
            0.6,
            Text(f"the warm-up of {end} steps is too short", f"{end} 步的预热过短"),
            (
                Text(
                    f"{symptom.verdict.en}, where the warm-up ends at step {end}",
                    f"{symptom.verdict.zh}，而预热在第 {end} 步结束",
                ),
                *symptom.why,
            ),
            Text(f"warm up over {longer} steps", f"用 {longer} 步预热"),
            {"train.schedule.warmup_steps": longer, "train.schedule.warmup_fraction": None},
            (Text("a learning rate that is too high: it would not pass", "学习率过高：不会自行消失"),),
            symptom.step,
            symptom.chart,
        )
    return None


RULE = Rule(
    "warmup_too_short",
    Text("a disturbance about the end of the warm-up", "预热结束前后的扰动"),
    (names.LOSS, names.RATE + " | settings"),
    "a spike or exploding gradients between half and twice the warm-up",
    "spikes of large published runs cluster at the end of the warm-up",
    "reads other findings",
    Severity.WARNING,
    check,
    frozenset(SYMPTOMS),
)

"""A model that is tuned forgets what it knew."""

from __future__ import annotations

import math

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

SIGNAL = "retained/loss"
VOCABULARY = "run.vocabulary"
SHARE = 0.05


def check(evidence: Evidence, found: Found) -> Finding | None:
    one, vocabulary = evidence.need(SIGNAL, 2).finite, evidence.number(VOCABULARY)
    if vocabulary is None:
        raise NotEnoughData(f"{VOCABULARY} is not known")
    first, last = float(one.values[0]), float(one.values[-1])
    known = math.log(vocabulary) - first
    if known <= 0:
        raise NotEnoughData("the model knew nothing of the text of doctor.retain when it began")
    lost = (last - first) / known
    if lost < SHARE:
        return None
    step = int(one.steps[int(((one.values - first) / known >= SHARE).argmax())])
    return Finding(
        "forgetting",
        Severity.WARNING,
        0.9,
        Text(f"{lost:.0%} of what the model knew of the retained text is lost", f"模型对保留文本的已有知识丢失了 {lost:.0%}"),
        (
            Text(
                f"its loss there was {first:.4g} ahead of the tuning and is {last:.4g}; knowing nothing is {first + known:.4g}",
                f"微调前其损失为 {first:.4g}，现为 {last:.4g}；一无所知时为 {first + known:.4g}",
            ),
        ),
        Text(
            "tune with a third of the learning rate or for fewer steps, mix in text like the retained one, or train adapters",
            "把学习率降为三分之一或减少步数，混入与保留文本类似的数据，或改用适配器",
        ),
        evidence.scaled(names.RATE_SETTING, 1 / 3),
        (Text("a retained text that is no text of the kind that the model was made for", "保留文本并非模型原本面向的类型"),),
        step,
        Chart(SIGNAL, one),
    )


RULE = Rule(
    "forgetting",
    Text("a tuned model that forgets", "微调造成的遗忘"),
    (SIGNAL, VOCABULARY),
    f"{SHARE:.0%} of the nats below ln(vocabulary) that it had ahead of the first step",
    "a definition of harm, as that of a divergence: part of what was learned is undone; the text is the same each time",
    "an evaluation of the text of doctor.retain beside each validation, where the recipe names one",
    Severity.WARNING,
    check,
)

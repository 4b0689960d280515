"""The learning rate is far from what models of this size are trained with."""

from __future__ import annotations

import numpy as np

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rules import learning_rate_too_high, learning_rate_too_low
from danlu.model.counts import parameter_count
from danlu.recipe import Recipe

PUBLISHED = {
    1e7: learning_rate_too_high.USUAL,
    1.25e8: 6e-4,
    3.5e8: 3e-4,
    7.6e8: 2.5e-4,
    1.3e9: 2e-4,
    2.7e9: 1.6e-4,
    6.7e9: 1.2e-4,
    1.3e10: 1e-4,
    1.75e11: 6e-5,
}
"""Peak by parameters: GPT-3, arXiv:2005.14165, table 2.1, and what the rules take for the smallest models."""
ABOVE, BELOW = 10.0, 50.0
TUNED = 5e-5
"""Highest usual of fine-tuning all weights, which takes 1e-5 to 5e-5."""
LEAST = learning_rate_too_low.USUAL / 10


def usual(parameters: float) -> float:
    """The published peak for so many parameters, between them on a line in logarithms."""
    sizes = np.log(list(PUBLISHED))
    return float(np.exp(np.interp(np.log(parameters), sizes, np.log(list(PUBLISHED.values())))))


def bounds(recipe: Recipe, parameters: float) -> tuple[float, float, float]:
    """(lowest, about the usual one, highest) that this recipe may rightly have."""
    if recipe.model.hugging_face is None:
        middle = usual(parameters)
        return middle / BELOW, middle, middle * ABOVE
    if recipe.train.samples == "text":  # what goes on with it may begin where that ended
        return LEAST, TUNED, 20 * TUNED
    least = LEAST / 100 if recipe.train.objective == "dpo" else LEAST  # its own paper takes 1e-6, others less
    if recipe.train.lora is not None:
        return least, 2e-4, 2e-3
    # From a third of the size's pre-training peak on it is that one, which small models bear better.
    return least, TUNED, max(4 * TUNED, usual(parameters) / 3)


def check(material: Material) -> Finding | None:
    rate = material.recipe.train.optimizer.learning_rate
    tuned = material.recipe.model.hugging_face is not None
    parameters = parameter_count(material.need_shape())
    low, middle, high = bounds(material.recipe, parameters)
    if low <= rate <= high:
        return None
    what, what_zh = (
        ("fine-tuning", "微调") if tuned else (f"{parameters / 1e6:,.0f} million parameters", f"{parameters / 1e6:,.0f} 百万参数")
    )
    return Finding(
        "usual_rates",
        Severity.WARNING,
        0.8,
        Text(
            f"the learning rate {rate:g} is far {'above' if rate > high else 'below'} what is usual",
            f"学习率 {rate:g} 远{'高' if rate > high else '低'}于常用值",
        ),
        (Text(f"about {middle:.1g} is usual for {what}", f"{what_zh}常用约 {middle:.1g}"),),
        Text("start from the usual rate", "从常用学习率开始"),
        {"train.optimizer.learning_rate": float(f"{middle:.1g}")},
        (Text("found by a search on a small model: then it stands", "在小模型上搜索得到：则保留"),),
    )


AUDIT = Audit(
    "usual_rates",
    Text("a learning rate that such models are not trained with", "与模型规模不符的学习率"),
    "the shape",
    f"{ABOVE:g} times above or {BELOW:g} times below the published peak of that size; fine-tuning: below {LEAST:g}, above "
    f"{4 * TUNED:g} and a third of that peak, or {20 * TUNED:g} (more pre-training), or 0.002 (adapters)",
    "GPT-3, arXiv:2005.14165, table 2.1; fine-tuning commonly takes 1e-5 to 5e-5, and adapters ten times that (LoRA, "
    "arXiv:2106.09685, tables 11 and 12)",
    Severity.WARNING,
    check,
    at_start=True,
)

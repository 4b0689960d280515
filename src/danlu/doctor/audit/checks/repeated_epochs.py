"""The training goes over the same text so often that it learns it by heart."""

from __future__ import annotations

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text

EPOCHS, GOOD = 40, 4


def check(material: Material) -> Finding | None:
    recipe = material.recipe
    there = material.need_prepared().train.tokens
    a_step = recipe.train.global_batch * recipe.data.sequence_length
    epochs = recipe.train.steps * a_step / there
    if epochs <= EPOCHS:
        return None
    return Finding(
        "repeated_epochs",
        Severity.WARNING,
        0.8,
        Text(f"the training data is gone over {epochs:,.0f} times", f"训练数据要重复 {epochs:,.0f} 遍"),
        (
            Text(
                f"{recipe.train.steps:,} steps of {a_step:,} tokens, and {there:,} training tokens; up to {GOOD} passes are "
                f"about as good as new text, beyond {EPOCHS} they add nothing",
                f"{recipe.train.steps:,} 步、每步 {a_step:,} 个 token，而训练数据只有 {there:,}；{GOOD} 遍以内几乎等同新文本，"
                f"超过 {EPOCHS} 遍没有收益",
            ),
        ),
        Text("add text, or train fewer steps", "增加文本，或减少步数"),
        {"train.steps": max(1, GOOD * there // a_step)},
    )


AUDIT = Audit(
    "repeated_epochs",
    Text("too many passes over too little text", "文本太少、重复太多遍"),
    "prepared data",
    f"more than {EPOCHS} passes",
    "Muennighoff et al. 2023, arXiv:2305.16264: 4 passes are about as good as new text, beyond 40 repeating is worth nothing",
    Severity.WARNING,
    check,
    at_start=True,
)

"""The optimizer does not run with what the recipe says."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

FIELDS = {
    "optimizer/epsilon": "train.optimizer.epsilon",
    "optimizer/weight_decay": "train.optimizer.weight_decay",
}
BETAS = "train.optimizer.betas"
RELATIVE = 1e-6


def check(evidence: Evidence, found: Found) -> Finding | None:
    wanted = {signal: evidence.number(field) for signal, field in FIELDS.items()}
    betas = evidence.facts.get(BETAS)
    if isinstance(betas, list | tuple) and len(betas) == 2:
        wanted |= {"optimizer/beta1": float(betas[0]), "optimizer/beta2": float(betas[1])}
    wanted["optimizer/decayed_vectors"] = 0.0
    differing = []
    step = None
    seen = 0
    for signal, value in wanted.items():
        one = evidence.get(signal)
        if one is None or value is None:
            continue
        seen += 1
        wrong = abs(one.finite.values - value) > RELATIVE * max(abs(value), 1e-12)
        if not wrong.any():
            continue
        at = int(wrong.argmax())
        first = int(one.finite.steps[at])
        step = first if step is None else min(step, first)
        name = signal.removeprefix("optimizer/")
        differing.append(
            Text(
                f"{name} is {one.finite.values[at]:g} at step {first}, and is to be {value:g}",
                f"第 {first} 步 {name} 为 {one.finite.values[at]:g}，应为 {value:g}",
            )
        )
    if not seen:
        raise NotEnoughData("the optimizer's settings in force are not recorded")
    if not differing:
        return None
    return Finding(
        "optimizer_settings",
        Severity.WARNING,
        0.97,
        Text("the optimizer does not run with the recipe's settings", "优化器的实际设置与配方不符"),
        tuple(differing),
        Text(
            "set them after the optimizer is made and after each load of its state; decay matrices only",
            "在创建优化器及每次加载其状态之后重新设置；只对矩阵做权重衰减",
        ),
        {},
        (),
        step,
    )


RULE = Rule(
    "optimizer_settings",
    Text(
        "betas, epsilon or weight decay in force that are not the recipe's, or decay of norms and biases",
        "优化器实际设置与配方不符",
    ),
    ("optimizer/NAME", "settings"),
    "any difference",
    "a definition; that norms and biases are not decayed is the practice of published models",
    "a look at numbers on the host a look",
    Severity.WARNING,
    check,
    frozenset({"resume_step", "spike", "plateau", "slow_descent", "learning_rate_too_low"}),
)

"""Parameters that no step has moved."""

from __future__ import annotations

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

AFTER = 10
"""Steps since the start after which a parameter must have moved."""
NAMED = 4


def check(evidence: Evidence, found: Found) -> Finding | None:
    layers = evidence.matching("sample/", "/moved")
    if not layers:
        raise NotEnoughData("sample/NAME/moved is not recorded")
    late = {name: one.finite for name, one in layers.items() if one.finite.steps[-1] >= AFTER}
    if not late:
        raise NotEnoughData(f"the run has not made {AFTER} steps yet")
    still = [name for name, one in late.items() if not one.values[one.steps >= AFTER].any()]
    if not still:
        return None
    step = min(int(late[name].steps[late[name].steps >= AFTER][0]) for name in still)
    every = len(still) == len(late)
    more = f" … {len(still) - NAMED}" if len(still) > NAMED else ""
    listed = ", ".join(still[:NAMED]) + more
    left_out = evidence.get("optimizer/left_out")
    why = [
        Text(
            f"of {listed}, no weight that was looked at is other than at the start, at step {int(late[still[0]].steps[-1])}",
            f"{listed}：到第 {int(late[still[0]].steps[-1])} 步为止，抽样的权重与起点完全相同",
        )
    ]
    if left_out is not None and left_out.finite.values[-1] > 0:
        count = int(left_out.finite.values[-1])
        why.append(
            Text(
                f"{count} parameters are not in the optimizer or need no gradient",
                f"{count} 个参数没有交给优化器或不需要梯度",
            )
        )
    return Finding(
        "unmoved_parameters",
        Severity.CRITICAL if every else Severity.WARNING,
        0.95,
        Text(f"{len(still)} of {len(late)} parameters do not move", f"{len(late)} 个参数中有 {len(still)} 个没有变化"),
        tuple(why),
        Text(
            "check that these parameters are in the optimizer, require gradients, and take part in the forward pass",
            "检查这些参数是否交给了优化器、需要梯度并参与前向计算",
        ),
        {},
        (
            Text("frozen on purpose: then this is right", "有意冻结：则无误"),
            Text(
                "updates below the weights' precision: other parameters would stand still in part",
                "更新量低于权重精度：其他参数也会部分静止",
            ),
        ),
        step,
    )


RULE = Rule(
    "unmoved_parameters",
    Text("trainable parameters that no step has moved", "没有任何一步更新过的可训练参数"),
    ("sample/NAME/moved",),
    f"none of up to 256 weights differs from the start, {AFTER} steps or more after it",
    "a definition: Adam's first update is the learning rate, whatever the gradient",
    "one copy of 256 weights a parameter from the device a look",
    Severity.CRITICAL,
    check,
    frozenset(
        {
            "gradients_kept",
            "positions_unused",
            "dead_layers",
            "learning_rate_too_low",
            "not_learning",
            "plateau",
            "slow_descent",
            "vanishing_gradients",
        }
    ),
)

"""NaN and infinity: at the end of a signal the run is over, again and again it is ill, once and gone it is worth knowing."""

from __future__ import annotations

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import Series

PLACES = 3
REPEATED = 3
"""Non-finite points that are more than an accident: fp16 skips single steps by design."""
WATCHED = (names.LOSS, names.GRADIENT, names.EVALUATED, names.VALIDATION)


def check(evidence: Evidence, found: Found) -> Finding | None:
    seen = {name: one for name in WATCHED if (one := evidence.signals.get(name)) is not None and len(one)}
    if not seen:
        raise NotEnoughData("no loss and no gradient norm is recorded")
    ill = {name: one for name, one in seen.items() if not np.isfinite(one.values).all() and not placeholders(one)}
    if not ill:
        return None
    ended = [name for name, one in ill.items() if not np.isfinite(one.values[-1])]
    scaled = evidence.get(names.SCALE) is not None
    if scaled and not ended:  # the scaling probes for overflow; what it finds is judged by its own rule
        ill.pop(names.GRADIENT, None)
        if not ill:
            return None
    name = ended[0] if ended else max(ill, key=lambda one: int((~np.isfinite(ill[one].values)).sum()))
    one = ill[name]
    bad = np.flatnonzero(~np.isfinite(one.values))
    first, count = int(one.steps[bad[0]]), len(bad)
    if ended:
        severity, verdict = Severity.CRITICAL, Text(f"{name} is not finite at the end", f"{name} 最后不再是有限数")
    elif count >= REPEATED:
        severity = Severity.WARNING
        verdict = Text(f"{name} is not finite {count} times and recovers", f"{name} 有 {count} 次不是有限数，之后恢复")
    else:
        severity = Severity.INFO
        verdict = Text(f"{name} is not finite for a moment", f"{name} 短暂地不是有限数")
    why = [
        Text(
            f"{name}: {count} of {len(one)} values are NaN or infinite, first at step {first}",
            f"{name}：{len(one)} 个值中有 {count} 个是 NaN 或无穷，首次在第 {first} 步",
        )
    ]
    before = one.between(0, first - 1).finite
    if len(before):
        last = before.values[-1]
        why.append(Text(f"the last finite value before was {last:.4g}", f"此前最后一个有限值是 {last:.4g}"))
    return Finding(
        "nonfinite",
        severity,
        0.99 if ended or count >= REPEATED else 0.6,
        verdict,
        tuple(why),
        Text(
            "go back to the last checkpoint before that step, lower the learning rate or use bf16 instead of fp16, "
            "and skip the batch",
            "回到该步之前的检查点，降低学习率，或用 bf16 代替 fp16，并跳过这一批数据",
        ),
        {"train.precision": "bf16"} if evidence.facts.get("train.precision") == "fp16" else {},
        (Text("a single damaged batch: it would not come back", "个别损坏的数据：不会反复出现"),),
        first,
        Chart(name, one),
    )


def placeholders(one: Series) -> bool:
    """Whether NaN only stands for "not measured at this step": most values are NaN, and finite ones keep coming to the end."""
    finite = np.flatnonzero(np.isfinite(one.values))
    if len(finite) < PLACES or np.isinf(one.values).any() or len(finite) > 0.5 * len(one):
        return False
    return bool(
        np.diff(finite).max() <= 2 * np.median(np.diff(finite)) and len(one) - finite[-1] <= 2 * np.median(np.diff(finite))
    )


RULE = Rule(
    "nonfinite",
    Text("NaN or infinity in a loss or the gradient norm", "损失或梯度范数出现 NaN 或无穷"),
    (" | ".join(WATCHED),),
    f"the last value, or {REPEATED} values",
    "a definition; overflows that fp16 loss scaling probes for are left to loss_scale_collapse",
    "one pass",
    Severity.CRITICAL,
    check,
)

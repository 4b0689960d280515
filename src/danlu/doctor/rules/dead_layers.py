"""Some layers get no gradient or no update while the others do."""

from __future__ import annotations

import numpy as np

from danlu.doctor.evidence import Evidence, NotEnoughData
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule

POINTS = 10
LAYERS = 2
FACTOR = 1e-6


def check(evidence: Evidence, found: Found) -> Finding | None:
    for kind in ("update_ratio", "gradient_norm"):
        layers = evidence.matching("layer/", f"/{kind}", POINTS)
        if len(layers) >= LAYERS:
            break
    else:
        raise NotEnoughData(f"no gradient norm or update ratio of {LAYERS} layers over {POINTS} points")
    now = {name: float(np.median(one.finite.values[-POINTS:])) for name, one in layers.items()}
    usual = float(np.median([value for value in now.values() if value > 0] or [0.0]))
    dead = [name for name, value in now.items() if value <= FACTOR * usual]
    if not dead or not usual:
        return None
    named = ", ".join(dead[:5]) + (f" and {len(dead) - 5} more" if len(dead) > 5 else "")
    one = layers[dead[0]].finite
    alive = np.flatnonzero(one.values > FACTOR * usual)
    step = int(one.steps[min(alive[-1] + 1, len(one) - 1)]) if len(alive) else int(one.steps[0])
    return Finding(
        "dead_layers",
        Severity.WARNING,
        0.85,
        Text(f"{len(dead)} of {len(now)} layers do not learn", f"{len(now)} 层中有 {len(dead)} 层不学习"),
        (
            Text(
                f"{kind} of {named} is below {FACTOR:g} of the others' {usual:.2g}",
                f"{named} 的 {kind} 不到其他层 {usual:.2g} 的 {FACTOR:g}",
            ),
        ),
        Text(
            "check that these parameters are in the optimizer, require gradients, and take part in the forward pass",
            "检查这些参数是否交给了优化器、需要梯度并参与前向计算",
        ),
        {},
        (Text("frozen on purpose: then this is right", "有意冻结：则一切正常"),),
        step,
        Chart(f"layer/{dead[0]}/{kind}", one),
    )


RULE = Rule(
    "dead_layers",
    Text("layers without gradient or update", "没有梯度或更新的层"),
    ("layer/NAME/update_ratio | layer/NAME/gradient_norm",),
    f"median of the last {POINTS} points below {FACTOR:g} of the median layer",
    "single precision resolves 1e-7 of a weight: smaller updates do nothing",
    "one median a layer",
    Severity.WARNING,
    check,
)

"""Norms and biases are decayed, or the decay is so strong that it erases the weights."""

from __future__ import annotations

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

MOST, USUAL = 1.0, 0.1


def check(material: Material) -> Finding | None:
    decay = material.recipe.train.optimizer.weight_decay
    vectors = None if material.optimizer is None else material.optimizer.get("decayed_vectors")
    why = []
    if decay > MOST:
        why.append(Text(f"weight_decay is {decay:g}; 0 to 0.3 is usual", f"weight_decay 为 {decay:g}；常用 0 到 0.3"))
    if vectors:
        why.append(
            Text(
                f"{vectors:.0f} one-dimensional parameters (norms, biases) are decayed",
                f"{vectors:.0f} 个一维参数（归一化、偏置）受到权重衰减",
            )
        )
    if not why:
        if vectors is None:
            raise NotEnoughData("the optimizer's groups are seen when training begins")
        return None
    return Finding(
        "weight_decay",
        Severity.WARNING,
        0.9,
        Text("weight decay strikes what it should not, or too hard", "权重衰减作用对象不当或过强"),
        tuple(why),
        Text("decay matrices alone, by about 0.1", "只对矩阵做权重衰减，约 0.1"),
        {"train.optimizer.weight_decay": USUAL} if decay > MOST else {},
    )


AUDIT = Audit(
    "weight_decay",
    Text("decay of norms and biases, or too much of it", "对归一化和偏置做权重衰减，或衰减过强"),
    "the engine's optimizer; the strength needs the recipe alone",
    f"one decayed vector; a weight_decay above {MOST:g}",
    "published models decay matrices by 0.1 (GPT-3, arXiv:2005.14165, appendix B; Llama)",
    Severity.WARNING,
    check,
    at_start=True,
)

"""The layout needs more memory than a device of this machine has."""

from __future__ import annotations

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text
from danlu.watch.format import bytes_text


def check(material: Material) -> Finding | None:
    plan = material.plan
    if plan is None:
        raise NotEnoughData("the planner does not know this machine's devices")
    there, needed, bound = (float(plan[name]) for name in ("device_memory", "memory", "memory_bound"))
    if bound <= there:
        return None
    short = needed > there
    return Finding(
        "memory_plan",
        Severity.CRITICAL if short else Severity.WARNING,
        0.85 if short else 0.5,
        Text("the run does not fit in memory", "显存或内存不足")
        if short
        else Text("the run may not fit in memory", "显存或内存可能不足"),
        (
            Text(
                f"predicted {bytes_text(int(needed))} a process, at most {bytes_text(int(bound))}; "
                f"{bytes_text(int(there))} are there",
                f"预计每个进程 {bytes_text(int(needed))}，至多 {bytes_text(int(bound))}；可用 {bytes_text(int(there))}",
            ),
        ),
        Text(
            "let the planner choose: memory: auto, or see `danlu plan RECIPE`",
            "让规划器选择：memory: auto，或运行 danlu plan RECIPE",
        ),
        {"memory.auto": True},
    )


AUDIT = Audit(
    "memory_plan",
    Text("a layout that does not fit this machine's memory", "本机内存放不下的布局"),
    "the shape, and a machine that the planner knows",
    "the planner's bound above the device's memory; critical: its estimate above it",
    "docs/planner-accuracy.md",
    Severity.CRITICAL,
    check,
    at_start=True,
)

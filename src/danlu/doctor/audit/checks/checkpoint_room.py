"""The disk has no room for the checkpoints to come."""

from __future__ import annotations

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text
from danlu.model.counts import state_bytes
from danlu.watch import probes
from danlu.watch.format import bytes_text


def check(material: Material) -> Finding | None:
    size = state_bytes(material.need_shape())
    one = size.weights + size.optimizer
    keep = material.recipe.checkpoint.keep
    there = len(list((material.folder / "checkpoints").glob("step-*")))
    wanted = one * max(1, keep + 1 - there)  # one is written before one is deleted
    free = probes.disk_free_bytes(material.folder)
    if free >= wanted:
        return None
    fitting = max(1, free // one - 1 + there)
    return Finding(
        "checkpoint_room",
        Severity.CRITICAL if free < one else Severity.WARNING,
        0.95,
        Text("the disk has no room for the checkpoints", "磁盘空间不足以保存检查点"),
        (
            Text(
                f"a checkpoint has {bytes_text(one)}, those to come {bytes_text(wanted)}; {bytes_text(free)} are free",
                f"每个检查点 {bytes_text(one)}，共需 {bytes_text(wanted)}；可用 {bytes_text(free)}",
            ),
        ),
        Text("make room, keep fewer, or take another folder with --runs", "清理磁盘、减少保留数量，或用 --runs 换目录"),
        {"checkpoint.keep": fitting} if fitting < keep else {},
    )


AUDIT = Audit(
    "checkpoint_room",
    Text("too little disk for the checkpoints", "磁盘放不下检查点"),
    "the shape",
    "free bytes below checkpoint.keep + 1 checkpoints; critical: below one",
    "definition: weights and two moments in FP32, 12 bytes a parameter",
    Severity.CRITICAL,
    check,
)

"""The loss jumps for several points in a row. One point is no spike: healthy runs have those."""

from __future__ import annotations

import math

import numpy as np

from danlu.doctor import evidence as names
from danlu.doctor.evidence import Evidence
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.doctor.rule import Found, Rule
from danlu.doctor.series import SIGMA, Series, runs, trailing_median

POINTS = 8
BEHIND = 51
SIGMAS = 6.0
IN_A_ROW = 3
LEAST = 0.1
EARLIEST = 20
"""Points before the first that can be a spike: at the start the loss may rise before it falls."""
OFTEN = 0.05
NORM = 3.0


def check(evidence: Evidence, found: Found) -> Finding | None:
    one = evidence.need(names.LOSS, POINTS).finite
    high, usual = elevated(one)
    spikes = [
        (start, stop) for start, stop in runs(high) if stop - start >= IN_A_ROW and (start >= EARLIEST or one.steps[0] > EARLIEST)
    ]
    if not spikes:
        return None
    gradient = evidence.get(names.GRADIENT, POINTS)
    confirmed = [confirms(gradient, one, span) for span in spikes]
    worst = max(range(len(spikes)), key=lambda at: float(one.values[slice(*spikes[at])].max() - usual[spikes[at][0]]))
    start, stop = spikes[worst]
    base, top, now = float(usual[start]), float(one.values[start:stop].max()), float(np.median(one.values[-3:]))
    ended = stop < len(one)
    back = ended or now <= base + 0.25 * (top - base)
    lasted = int(one.steps[min(stop, len(one) - 1)] - one.steps[start])
    recovery = Text(f"recovered after {lasted} steps", f"{lasted} 步后恢复") if back else Text("has not recovered", "尚未恢复")
    serious = not back or sum(stop - start for start, stop in spikes) >= OFTEN * len(one)
    norm = Text("no gradient norm is recorded", "没有记录梯度范数")
    if confirmed[worst] is not None:
        norm = (
            Text("the gradient norm rose with it", "梯度范数同时上升")
            if confirmed[worst]
            else Text("the gradient norm did not rise", "梯度范数没有上升")
        )
    return Finding(
        "spike",
        Severity.WARNING if serious else Severity.INFO,
        0.9 if confirmed[worst] else 0.7 if confirmed[worst] is None else 0.4,
        Text(f"{len(spikes)} loss spike(s); the highest {recovery.en}", f"{len(spikes)} 个损失尖峰；最高的一个：{recovery.zh}"),
        (
            Text(
                f"{names.LOSS} rose from {base:.4g} to {top:.4g} at step {int(one.steps[start])} for {stop - start} "
                f"points, and {recovery.en}",
                f"{names.LOSS} 在第 {int(one.steps[start])} 步从 {base:.4g} 升到 {top:.4g}，持续 {stop - start} 个点"
                f"，{recovery.zh}",
            ),
            norm,
        ),
        Text(
            "if it comes back, do nothing; if not, go back about 100 steps, skip 200 to 500 batches and train on",
            "若能恢复则不必处理；否则回退约 100 步，跳过 200 至 500 批数据后继续",
        ),
        {},
        (Text("a single odd batch: it lasts one point", "个别异常数据：只持续一个点"),),
        int(one.steps[start]),
        Chart(names.LOSS, one),
    )


def elevated(one: Series) -> tuple[np.ndarray, np.ndarray]:
    """(points far above the median before them, that median). What is elevated does not raise the median it is held against."""
    values = one.values
    usual = trailing_median(values, BEHIND)
    usual[: min(IN_A_ROW, len(usual))] = np.inf
    changes = np.abs(np.diff(values))
    noise = SIGMA * float(np.median(changes)) / math.sqrt(2)
    least = LEAST * np.abs(usual)
    return values - usual > np.maximum(SIGMAS * noise, least), usual


def confirms(gradient: Series | None, one: Series, span: tuple[int, int]) -> bool | None:
    """Whether the gradient norm rose around the spike; None where it is not recorded or was not computed."""
    if gradient is None or not (gradient.finite.values > 0).any():
        return None
    first, last = int(one.steps[span[0]]), int(one.steps[span[1] - 1])
    around = gradient.finite.between(first - max(10, (last - first) // 2), last)
    before = gradient.finite.between(0, first - 1).values[-BEHIND:]
    if not len(around) or not len(before):
        return None
    return bool(around.values.max() > NORM * np.median(before))


RULE = Rule(
    "spike",
    Text("the loss jumps up for several points", "损失连续几个点跳升"),
    (names.LOSS,),
    f"{IN_A_ROW} points in a row {SIGMAS:g} standard deviations and {LEAST:.0%} above the running median; a warning "
    f"where it has not come back or {OFTEN:.0%} of the run are spikes",
    "single points beyond any such bound occur in 75 of 75 healthy GPT logs, three in a row in none",
    "one running median",
    Severity.WARNING,
    check,
)

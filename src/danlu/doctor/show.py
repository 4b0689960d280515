"""Findings for a person on a terminal and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from danlu.doctor.diagnose import Diagnosis
from danlu.doctor.finding import Chart, Finding, Severity, Text
from danlu.watch.format import figure, padded

Language = Literal["en", "zh"]
BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "×"
"""Stands in a sparkline for what is NaN or infinite."""
COLUMNS = 48

SEVERITIES = {
    Severity.INFO: Text("info", "提示"),
    Severity.WARNING: Text("WARNING", "警告"),
    Severity.CRITICAL: Text("CRITICAL", "严重"),
}
WORDS = {
    "why": Text("why", "依据"),
    "next": Text("next", "建议"),
    "considered": Text("considered", "也考虑过"),
    "symptoms": Text("symptoms", "症状"),
    "confidence": Text("confidence", "置信度"),
    "step": Text("from step", "始于步"),
    "steps": Text("steps", "步"),
}


def said(text: Text, language: Language) -> str:
    """The words in one language."""
    return text.zh if language == "zh" else text.en


RULES = Text("rules", "条规则")


def lines(diagnosis: Diagnosis, language: Language, everything: bool = False, asked: Text = RULES) -> Iterator[str]:
    """What the terminal shows; with everything, also why some could not judge. `asked` is what was: rules, or audits."""
    for finding in diagnosis.findings:
        yield from _finding(finding, language)
        yield ""
    judged, unjudged = len(diagnosis.silent), diagnosis.unjudged
    if not diagnosis.findings:
        yield said(Text("nothing found", "没有发现问题"), language)
    yield said(
        Text(
            f"{judged} {asked.en} found nothing; {len(unjudged)} lack the data to judge"
            + ("" if everything else " (--all says which)"),
            f"{judged} {asked.zh}没有发现问题；{len(unjudged)} 条缺少数据，无法判断" + ("" if everything else "（--all 列出）"),
        ),
        language,
    )
    if everything:
        for rule, missing in sorted(unjudged.items()):
            yield f"  {rule}: {missing}"


def _finding(finding: Finding, language: Language) -> Iterator[str]:
    where = "" if finding.step is None else f", {said(WORDS['step'], language)} {finding.step}"
    head = f"{said(SEVERITIES[finding.severity], language)}: {said(finding.verdict, language)}"
    yield f"{head}  [{finding.rule}, {said(WORDS['confidence'], language)} {finding.confidence:.0%}{where}]"
    why = [said(text, language) for text in finding.why]
    if finding.chart is not None and len(finding.chart.series):
        why.append(chart_line(finding.chart, language))
    following = [said(finding.next, language)]
    if finding.patch:
        following.append(overrides(finding))
    paragraphs = {
        "why": why,
        "symptoms": [f"{symptom.rule}: {said(symptom.verdict, language)}" for symptom in finding.symptoms],
        "considered": [said(text, language) for text in finding.considered],
        "next": following,
    }
    for word, texts in paragraphs.items():
        for at, text in enumerate(texts):
            yield f"  {padded('' if at else said(WORDS[word], language), 10)} {text}"


def overrides(finding: Finding) -> str:
    """The recipe change as overrides, which any verb takes behind a recipe."""
    return " ".join(f"{field}={'null' if value is None else value}" for field, value in finding.patch.items())


def chart_line(chart: Chart, language: Language = "en") -> str:
    """A sparkline with the range of steps and values."""
    one = chart.series
    finite = one.finite.values
    span = f"{figure(float(finite.min()))} … {figure(float(finite.max()))}" if len(finite) else "–"
    steps = f"{said(WORDS['steps'], language)} {one.steps[0]}…{one.steps[-1]}"
    return f"{sparkline(one.values)}  {chart.name}, {steps}, {span}"


def sparkline(values: np.ndarray, columns: int = COLUMNS) -> str:
    """One character a bucket of equal count: its median; logarithmic where the values span more than two decades."""
    edges = np.linspace(0, len(values), min(columns, len(values)) + 1).astype(np.int64)
    medians = []
    for start, stop in pairwise(edges):
        part = values[start:stop]
        medians.append(float(np.median(part[np.isfinite(part)])) if np.isfinite(part).all() and len(part) else math.nan)
    level = np.array(medians)
    finite = level[np.isfinite(level)]
    if not len(finite):
        return GAP * len(level)
    if finite.min() > 0 and finite.max() > 100 * finite.min():
        level, finite = np.log(level), np.log(finite)
    largest = float(np.abs(finite).max()) or 1.0  # a difference of the largest numbers would overflow
    level, finite = level / largest, finite / largest
    low, high = float(finite.min()), float(finite.max())
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] if math.isfinite(value) else GAP for value in level.tolist())


def as_json(diagnosis: Diagnosis, name: str) -> dict[str, Any]:
    """The diagnosis for programs."""
    return {
        "name": name,
        "worst": None if diagnosis.worst is None else diagnosis.worst.name.lower(),
        "findings": [as_json_finding(finding) for finding in diagnosis.findings],
        "silent": list(diagnosis.silent),
        "not_enough_data": diagnosis.unjudged,
    }


def one_line(finding: Finding, language: Language = "en") -> str:
    """The verdict, and what to do where there is a change to make."""
    change = f"; {said(WORDS['next'], language)}: {overrides(finding)}" if finding.patch else ""
    return f"{said(SEVERITIES[finding.severity], language)}: {said(finding.verdict, language)} [{finding.rule}]{change}"


def as_json_finding(finding: Finding) -> dict[str, Any]:
    """One finding for programs."""
    return {
        "rule": finding.rule,
        "severity": finding.severity.name.lower(),
        "confidence": finding.confidence,
        "step": finding.step,
        "verdict": finding.verdict._asdict(),
        "why": [text._asdict() for text in finding.why],
        "next": finding.next._asdict(),
        "patch": dict(finding.patch),
        "considered": [text._asdict() for text in finding.considered],
        "chart": None if finding.chart is None or not len(finding.chart.series) else chart_line(finding.chart),
        "symptoms": [as_json_finding(symptom) for symptom in finding.symptoms],
    }

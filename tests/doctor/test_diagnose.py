"""Rules are discovered, ordered and grouped; the live form tells news once and stays small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from danlu.doctor import live
from danlu.doctor import rules as package
from danlu.doctor.__main__ import main
from danlu.doctor.diagnose import Diagnosis, diagnose, grouped
from danlu.doctor.evidence import GRADIENT, LOSS, Evidence
from danlu.doctor.finding import Finding, Severity, Text
from danlu.doctor.live import Live
from danlu.doctor.rule import all_rules
from danlu.doctor.series import Series

from .conftest import evidence, healthy
from .test_rules import diverges, hot

DOCS = Path(__file__).parents[2] / "docs"


def finding(rule: str, severity: Severity = Severity.WARNING, step: int | None = None, confidence: float = 0.5) -> Finding:
    return Finding(rule, severity, confidence, Text(rule, rule), (), Text("", ""), step=step)


def test_a_rule_is_a_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_more.py").write_text(
        "from danlu.doctor.finding import Finding, Severity, Text\n"
        "from danlu.doctor.rule import Rule\n"
        "def check(evidence, found):\n"
        "    return Finding('one_more', Severity.INFO, 0.5, Text('a', 'b'), (), Text('', ''))\n"
        "RULE = Rule('one_more', Text('x', 'y'), (), '', '', '', Severity.INFO, check, frozenset({'spike'}))\n"
    )
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    all_rules.cache_clear()
    try:
        ids = [rule.id for rule in all_rules()]
        assert ids.index("one_more") > ids.index("spike")
        assert [one.rule for one in diagnose(evidence()).findings] == ["one_more"]
    finally:
        monkeypatch.undo()
        all_rules.cache_clear()
    assert "one_more" not in [rule.id for rule in all_rules()]


def test_a_mistake_in_a_rule_ends_nothing() -> None:
    def broken(_: Evidence, __: dict[str, Finding]) -> None:
        raise ZeroDivisionError("oh")

    rules = [replace(all_rules()[0], check=broken), *all_rules()[1:]]
    diagnosis = diagnose(evidence(), rules)
    assert "please report it: ZeroDivisionError('oh')" in diagnosis.unjudged[rules[0].id] and diagnosis.silent


def test_rules_declare_themselves() -> None:
    rules = all_rules()
    ids = [rule.id for rule in rules]
    assert len(set(ids)) == len(ids) > 20
    for at, rule in enumerate(rules):
        assert (rule.explains | rule.reads) <= set(ids[:at])
        assert rule.catches.en and rule.catches.zh and rule.needs and rule.threshold and rule.origin and rule.cost


def test_symptoms_go_under_their_cause() -> None:
    explains = {"a": frozenset[str](), "b": frozenset({"a"}), "c": frozenset({"b"}), "d": frozenset({"a"}), "e": frozenset[str]()}
    found = {
        "a": finding("a", Severity.CRITICAL, 7),
        "b": finding("b", step=9),
        "c": finding("c", Severity.INFO),
        "d": finding("d", step=1),
        "e": finding("e", confidence=0.9),
    }
    causes = grouped(found, explains)
    assert [one.rule for one in causes] == ["c", "e", "d"]
    assert [one.rule for one in causes[0].symptoms] == ["a", "b"]
    assert causes[0].severity == Severity.CRITICAL and causes[0].step == 7
    assert not causes[2].symptoms  # a cause further up has taken it


def test_the_table_of_rules_is_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert "doctor-rules.md" in capsys.readouterr().out
    written = (tmp_path / "doctor-rules.md").read_text("utf-8")
    assert (DOCS / "doctor-rules.md").read_text("utf-8") == written, "run python -m danlu.doctor"
    audits = (tmp_path / "doctor-audits.md").read_text("utf-8")
    assert (DOCS / "doctor-audits.md").read_text("utf-8") == audits, "run python -m danlu.doctor"
    assert all(f"`{rule.id}`" in written for rule in all_rules()) and "{" not in written
    assert main([str(tmp_path / "absent")]) == 2


def test_a_live_run_hears_of_a_fault_once_and_soon() -> None:
    at, values = healthy()
    hot(values, at, np.random.default_rng(1))
    doctor = Live({"train.optimizer.learning_rate": 3e-4, "train.steps": 600})
    told = []
    for index, step in enumerate(at.tolist()):
        doctor.add(step, {LOSS: values[LOSS][index], GRADIENT: values[GRADIENT][index]})
        if step % 10 == 0:
            told += [(step, one.rule, one.severity) for one in doctor.news() if one.severity >= Severity.WARNING]
    assert told and 400 <= told[0][0] <= 460
    assert len(told) == len({(rule, severity) for _, rule, severity in told})
    assert told[-1][1:] == ("learning_rate_too_high", Severity.CRITICAL)


@pytest.mark.parametrize("seed", range(2))
def test_a_live_run_without_a_fault_hears_nothing(seed: int) -> None:
    at, values = healthy(seed)
    doctor = Live({"train.optimizer.learning_rate": 3e-4, "train.steps": 600, "train.schedule.warmup_steps": 37})
    for index, step in enumerate(at.tolist()):
        doctor.add(step, {name: array[index] for name, array in values.items()})
        if step % 20 == 0:
            assert not [one.verdict.en for one in doctor.news() if one.severity >= Severity.WARNING], step


def test_a_live_run_keeps_a_bounded_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POINTS", 64)
    doctor = Live()
    for step in range(1000):
        doctor.add(step, {LOSS: float(step)})
        assert len(doctor.evidence().need(LOSS)) <= 64
    kept = doctor.evidence().need(LOSS)
    assert kept.steps[0] == 0 and kept.steps[-32:].tolist() == list(range(968, 1000)) and (np.diff(kept.steps) > 0).all()


def test_a_live_run_pays_a_bounded_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def costly(_: Live) -> Diagnosis:
        clock[0] += 2.0
        return Diagnosis((), {}, ())

    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Live, "diagnose", costly)
    doctor = Live()
    assert doctor.due
    doctor.news()
    assert not doctor.due
    clock[0] += 2.0 / live.SHARE - 0.1
    assert not doctor.due
    clock[0] += 0.2
    assert doctor.due


def test_a_resumed_live_run_knows_what_was_before() -> None:
    before = evidence(diverges)
    doctor = Live(before.facts, history=before.signals)
    assert [one.rule for one in doctor.diagnose().findings] == [one.rule for one in diagnose(before).findings]


def test_a_long_past_is_thinned_as_a_live_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POINTS", 64)
    steps = np.arange(1, 1001)
    kept = Live(history={LOSS: Series(steps, 1.0 * steps)}).evidence().signals[LOSS]
    assert len(kept) <= 64
    assert kept.steps[0] == 1 and kept.steps[-32:].tolist() == list(range(969, 1001))
    assert np.diff(kept.steps).max() == 31 and (kept.values == kept.steps).all()


def test_what_is_not_a_curve_has_the_same_form() -> None:
    """An audit or an invariant has no step and no chart, and is grouped all the same."""
    one = replace(finding("audit"), patch={"data.validation_fraction": 0.1})
    assert grouped({"audit": one}, {"audit": frozenset()}) == (one,)


def test_settings_decide_the_end_of_the_warm_up() -> None:
    one = evidence()
    assert one.warmup_end() == 37  # from the curve
    assert Evidence({}, {"train.schedule.warmup_fraction": 0.1, "train.steps": 500}).warmup_end() == 50
    assert Evidence({}).warmup_end() is None

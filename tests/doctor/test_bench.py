"""The benchmark of injected faults: results of other code are not taken for its own, and what is pooled says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.doctor.page import page
from benchmarks.doctor.run import Results, gathered
from benchmarks.doctor.version import UNKNOWN, version

NAME = "labels not shifted"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Results of this version, of an older one, and of one that noted none."""
    told = [[10, "label_offset", "critical", ""]]
    rows = [{"id": NAME, "seed": seed, "told": told, "losses": []} | code for seed, code in enumerate(CODES)]
    rows.append({"id": "twin: plain", "seed": 0, "told": [], "losses": [], "code": "new"})
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


CODES: tuple[dict[str, str], ...] = ({"code": "new"}, {"code": "old"}, {})


def test_only_results_of_this_code_count(kept: Path) -> None:
    from benchmarks.doctor.run import faults

    results = Results(kept, "new", pooled=False)
    assert set(results.found) == {(NAME, 0), ("twin: plain", 0)}
    assert results.others == {"old": 1, UNKNOWN: 1}
    rows, twins, figures = gathered(results, faults(), 3)
    assert (figures["faults"], figures["twins"], figures["versions"]) == (1, 1, {"new": 2})
    written = page(rows, twins, figures)
    assert "Pooled" not in written
    assert f"1 of {figures['wanted']['faults']} runs with a fault" in written


def test_what_is_pooled_says_so(kept: Path) -> None:
    from benchmarks.doctor.run import faults

    results = Results(kept, "new", pooled=True)
    rows, twins, figures = gathered(results, faults(), 3)
    assert figures["faults"] == 3
    assert figures["versions"] == {"new": 2, "old": 1, UNKNOWN: 1}
    head = page(rows, twins, figures).split("| Fault")[0]
    assert "**Pooled**" in head and f"new: 2, old: 1, {UNKNOWN}: 1" in head


def test_the_version_is_that_of_the_rules_and_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import danlu

    (tmp_path / "rules").mkdir()
    (tmp_path / "__init__.py").touch()
    rule = tmp_path / "rules" / "one.py"
    rule.write_text("LEAST = 1")
    monkeypatch.setattr(danlu, "__file__", str(tmp_path / "__init__.py"))
    first = version()
    assert version() == first
    rule.write_text("LEAST = 2")
    assert version() != first

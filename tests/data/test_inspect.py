"""`danlu data filter` and `danlu data inspect`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from danlu.cli import cli
from danlu.errors import UserError

from .conftest import write_jsonl
from .test_quality import CHINESE, ENGLISH


def danlu(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=True)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("filter")
    german = "Der alte Kessel stand im Haus und wurde von Hand gefüllt. " * 2
    texts = [ENGLISH, CHINESE + "京ICP备12345678号", "too short, the end of it.", german, ENGLISH + "{{{", "短。"]
    write_jsonl(place / "in.jsonl", texts)
    done = danlu("data", "filter", place / "in.jsonl", "--output", place / "out", "--set", "language.keep=[en, zh]", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["kept"], report["rejected"]) == (2, 4)
    return place / "out"


def inspected(*arguments: object) -> list[dict[str, Any]]:
    done = danlu("data", "inspect", *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_what_was_left_out_says_why(result: Path) -> None:
    found = inspected(result)
    reasons = {one["place"].rsplit(":")[-1]: (f"{one['stage']}.{one['rule']}", one["value"]) for one in found}
    assert reasons == {
        "3": ("quality.gopher.least_words", 6.0),
        "4": ("language.other", "de"),
        "5": ("quality.c4.most_curly_brackets", 3.0),
        "6": ("quality.chinese.least_characters", 2.0),
    }
    assert [one["value"] for one in inspected(result, "--rule", "quality", "--skip", 1, "--limit", 1)] == [3.0]
    assert [one["text"] for one in inspected(result, "--rule", "language.other", "--characters", 3)] == ["Der"]
    assert inspected(result, "--grep", "nowhere to be found") == []


def test_what_was_kept_is_as_it_was_cleaned(result: Path) -> None:
    kept = inspected(result, "--kept", "--characters", 10_000)
    assert [one["text"] for one in kept] == [ENGLISH.rstrip(), CHINESE.rstrip()]
    text = danlu("data", "inspect", result, "--kept", "--grep", "水壶", "--characters", 5).stdout
    assert text.startswith("kept/00000.jsonl:2\n    老屋里的水\n    … ")


def test_totals(result: Path) -> None:
    facts = json.loads(danlu("data", "inspect", result, "--summary", "--json").stdout)
    assert facts["records"] == 6 and facts["waterfall"][0]["documents"] == 6
    text = danlu("data", "inspect", result, "--summary").stdout
    assert "6 records: 2 kept, 4 rejected" in text and "quality.c4.most_curly_brackets" in text


def test_errors_name_the_way_out(result: Path, tmp_path: Path) -> None:
    new = ["--output", tmp_path / "x"]
    for arguments, words in [
        (["inspect", tmp_path], "holds no result of curation"),
        (["inspect", result, "--rule", "nothing"], "language.other"),
        (["inspect", result, "--kept", "--rule", "quality"], "leave one of the two out"),
        (["filter", result / "kept", *new, "--set", "qualty.c4=null"], "did you mean data.curate.quality"),
        (["filter", tmp_path / "none", *new], "no such file or folder"),
        (["filter", result / "kept", *new, "--set", "quality.c4.least_sentences=99"], "nothing is kept"),
    ]:
        done = danlu("data", *arguments)
        assert isinstance(done.exception, UserError) and words in str(done.exception), done.exception
        assert "\n" not in str(done.exception)
    (tmp_path / "half.partial").mkdir()
    assert "goes on" in str(danlu("data", "inspect", tmp_path / "half").exception)


def test_a_stage_is_switched_off_and_on(result: Path, tmp_path: Path) -> None:
    rest = ["--set", "quality=null", "--set", "boilerplate=null", "--set", "dedup=default", "--json"]
    done = json.loads(danlu("data", "filter", result.parent / "in.jsonl", "--output", tmp_path / "out", *rest).stdout)
    assert done["kept"] == 6 - done["rules"].get("dedup.near", 0)
    assert [row["stage"] for row in done["waterfall"]] == ["read", "normalise", "language", "dedup", "kept"]


def test_other_fields_may_hold_what_strict_json_lacks(tmp_path: Path) -> None:
    rows = [
        f'{{"text": "{text}", "other": {other}}}' for text in (ENGLISH + "\\n\\n\\n", "short") for other in ("NaN", r'"\ud800"')
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(row.replace("\n", "\\n") for row in rows))
    out = tmp_path / "out"
    done = danlu("data", "filter", tmp_path / "in.jsonl", "--output", out, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["kept"], report["rejected"]) == (2, 2)
    assert [one["text"] for one in inspected(out)] == ["short"] * 2
    assert [one["text"] for one in inspected(out, "--kept", "--characters", 9999)] == [ENGLISH.strip()] * 2
    assert [json.loads(line)["other"] for line in (out / "kept" / "00000.jsonl").read_text().splitlines()][1] == "\ud800"

"""Whatever the input, with every stage on: documents in = kept + rejected + empty + unreadable, and the reasons are there."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from danlu.data.curate.job import Curated, curate, settings_of
from danlu.data.sources import resolve
from danlu.errors import UserError
from danlu.files import locked
from danlu.recipe.data_sections import DataSection

from .test_quality import CHINESE, ENGLISH

STAGES = ("normalise", "boilerplate", "language", "quality", "quality_model", "toxicity", "personal", "dedup")


def hostile(place: Path) -> None:
    """Files of which some are not what their names say, some break off, and some hold what no rule expects."""
    rng = random.Random(3)
    place.mkdir()
    rows: list[bytes] = []
    for number in range(60):
        if rng.random() < 0.5:
            text = ENGLISH + " ".join(rng.sample(ENGLISH.split(), 50)) + f". And {number} is the last of them.\n"
        else:
            text = CHINESE + "".join(rng.sample(CHINESE, len(CHINESE))) + f"最后是第{number}个。\n"
        if rng.random() < 0.4:
            text = rng.choice([text.replace(".", "").replace("。", ""), text[:20], text + "{", text.upper() * 3, "#" * 300])
        rows.append(json.dumps({"text": text}, ensure_ascii=rng.random() < 0.5).encode())
    odd = [
        "\x00\x01",
        "\ufeff \u200b",
        "a" * 100_000,
        "\ud83d\ude00" * 50,
        "e\u0301" * 99,
        "{" * 500,
        "\n" * 99 + "x",
        "好" * 5000,
    ]
    rows += [json.dumps({"text": text}).encode() for text in odd]
    rows += [
        b'{"text": null}',
        b'{"text": {"a": [1]}}',
        b'{"text": "\xff"}',
        b'{"text": "cut',
        b"[" * 5000,
        b"null",
        b'{"text": ""}',
    ]
    (place / "a.jsonl").write_bytes(b"\n".join(rows))
    whole = gzip.compress(b"\n".join(rows[:30]))
    (place / "b.jsonl.gz").write_bytes(whole[: len(whole) * 2 // 3])
    packed = zstandard.compress(b"\n".join(rows[:30]))
    (place / "c.jsonl.zst").write_bytes(packed[: len(packed) * 2 // 3])
    (place / "d.jsonl.gz").write_bytes(b"no gzip at all")
    (place / "e.parquet").write_bytes(b"PAR1 nor Parquet")
    (place / "f.txt").write_bytes("中文，不是UTF-8。".encode("gbk") * 20)
    (place / "g.py").write_text("x = {}\n" * 5)
    (place / "loop").symlink_to(place)


def run(place: Path, out: Path, **more: Any) -> Curated:
    curation = {stage: {} for stage in STAGES} | {"language": {"keep": ["en", "zh"]}, "noise_ratio": 0.07, "workers": 1} | more
    sources = [{"path": str(place)}]
    data = DataSection.model_validate({"sources": sources, "curate": curation, "bad_line_limit": 1.0})
    return curate(resolve(data.sources), out, settings_of(data), lambda line: None)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_is_lost_and_processes_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile(tmp_path / "in")
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)
    done = run(tmp_path / "in", tmp_path / "one")
    report = done.report
    assert report["records"] == report["kept"] + report["rejected"] + report["empty"] + report["unreadable"]
    lines = {
        part: [json.loads(line) for path in (done.folder / part).iterdir() for line in path.read_bytes().splitlines()]
        for part in ("kept", "noise", "rejected")
    }
    assert len(lines["kept"]) + len(lines["noise"]) == report["kept"] > 5
    assert len(lines["rejected"]) == report["rejected"] == sum(report["rules"].values()) > 20
    assert all({"stage", "rule", "value", "place", "document"} <= why.keys() for why in lines["rejected"])
    assert report["unreadable"] >= 10 and report["empty"] >= 1
    falls = report["waterfall"]
    assert sum(row["documents"] for row in falls[:-1]) == falls[-1]["documents"]
    assert sum(row["bytes"] for row in falls[:-1]) == falls[-1]["bytes"]
    assert any("x = {}" in row["text"] for row in lines["kept"])  # code is not judged by rules for prose
    several = run(tmp_path / "in", tmp_path / "three", workers=3)
    assert content(several.folder) == content(done.folder)


def test_two_jobs_on_one_folder(tmp_path: Path) -> None:
    hostile(tmp_path / "in")
    with locked(tmp_path / "out", "busy"), pytest.raises(UserError, match="another process is curating"):
        run(tmp_path / "in", tmp_path / "out")


def test_a_limit_on_bad_records_is_held_to_and_costs_no_work_when_it_is_raised(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"{ENGLISH} {number}"}) for number in range(9)]
    (tmp_path / "in.jsonl").write_text("\n".join([*rows, "no json"]))
    lines: list[str] = []

    def limited(limit: float) -> Curated:
        curation = {"normalise": {}, "workers": 1}
        data = {"sources": [{"path": str(tmp_path / "in.jsonl")}], "curate": curation, "bad_line_limit": limit}
        section = DataSection.model_validate(data)
        return curate(resolve(section.sources), tmp_path / "out", settings_of(section), lines.append)

    with pytest.raises(UserError, match="1 of 10 records are bad"):
        limited(0.01)
    assert limited(0.1).report["kept"] == 9
    assert any("going on" in line for line in lines)
    with pytest.raises(UserError, match="1 of 10 records are bad"):
        limited(0.05)
    assert "reused" not in lines[-1] and limited(0.1).report["kept"] == 9 and "reused" in lines[-1]

"""`danlu plan` as a person and a program see it; it needs no framework."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
MODEL = ("llama-3.1-8b", "--hardware", "h100-80gb", "--devices", "8", "--sequence", "4096", "--global-batch", "64")
CONFIG = {
    "model_type": "newcomer",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "intermediate_size": 5504,
}
BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "paddle", "transformers", "safetensors", "tokenizers", "pyarrow"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
from danlu.cli import main
main()
"""


def test_it_plans_without_any_framework() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED, "plan", *MODEL, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"] is True


def test_the_verdict_comes_first(danlu: Call) -> None:
    code, out, _ = danlu("plan", *MODEL)
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[:4]] == ["fits", "time", "price", "memory"]
    assert lines[0].startswith("fits     8 x h100-80gb: ")
    assert "tokens/s" in lines[1] and "MFU" in lines[1]
    assert "note     --tokens is not given" in out
    assert len(re.findall(r"^\d beats \d: ", out, re.MULTILINE)) == 4
    assert re.search(r"^parallel: +\{", out, re.MULTILINE)


def test_json_has_what_the_text_says(danlu: Call) -> None:
    _, out, _ = danlu("plan", *MODEL, "--tokens", "1e9", "--json")
    answer = json.loads(out)
    best = answer["plans"][0]
    assert answer["tokens"] == pytest.approx(1e9, rel=1e-3) and len(answer["plans"]) == 5
    assert best["data"] * best["tensor"] * best["pipeline"] == best["devices"] == 8
    assert best["tokens_per_second"] == pytest.approx(64 * 4096 / best["step_seconds"])
    assert best["price"] == pytest.approx(best["hours"] * 8 * 2.99)
    assert best["memory"] == max(stage["estimate"] for stage in best["stages"])
    assert sum(best["parts"].values()) == pytest.approx(best["step_seconds"])


def test_when_nothing_fits_the_smallest_changes_are_told(danlu: Call) -> None:
    code, out, _ = danlu("plan", "llama-3.1-70b", "--hardware", "h100-80gb", "--devices", "2", "--precision", "fp32")
    assert code == 4
    assert out.startswith("no       llama-3.1-70b fits 2 x h100-80gb")
    assert re.search(r"^change   \d+ devices instead of 2: ", out, re.MULTILINE)


def test_a_recipe_is_planned_beside_its_own_layout(danlu: Call, recipe_file: Path) -> None:
    code, out, _ = danlu("plan", recipe_file, "--hardware", "cpu", "--devices", 2, "parallel.data=2")
    assert code == 0
    assert "recipe   data 2; fp32, micro-batch 4 x 1: fits" in out
    code, out, _ = danlu("plan", recipe_file, "--hardware", "cpu", "--json", "train.precision=fp32")
    answer = json.loads(out)
    assert answer["devices"] == 1 and answer["own"]["micro_batch"] == 4
    assert {each["precision"] for each in answer["plans"]} == {"fp32"}


def test_a_configuration_alone_is_enough(danlu: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name in (tmp_path, tmp_path / "config.json"):
        code, out, _ = danlu("plan", name, "--hardware", "l40s", "--devices", 4)
        assert code == 0 and out.startswith("fits     4 x l40s")
        assert "note     model_type newcomer is not known" in out


class _Page(HTMLParser):
    """Collects what a page would fetch, and how many bars it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.stages = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.fetched += [value for name in ("src", "href") if (value := given.get(name))]
        self.stages += given.get("class") == "stage"


def test_the_page_and_the_picture_stand_alone(danlu: Call, tmp_path: Path) -> None:
    page, picture = tmp_path / "plan.html", tmp_path / "schedule.svg"
    options = ("--hardware", "h100-80gb", "--devices", "512", "--global-batch", "64", "--sequence", "8192")
    code, out, err = danlu("plan", "llama-3.1-405b", *options, "--html", page, "--timeline", picture, "--json")
    best = json.loads(out)["plans"][0]
    assert best["pipeline"] > 1
    assert code == 0 and f"wrote {page}" in err and f"wrote {picture}" in err
    read = _Page()
    read.feed(page.read_text("utf-8"))
    assert read.fetched == []
    assert read.stages == best["pipeline"]
    assert "bubble" in ET.fromstring(picture.read_text("utf-8")).attrib["aria-label"]
    assert page.read_text("utf-8").count("<svg") == 1


def test_a_sweep_is_a_table(danlu: Call) -> None:
    arguments = ("llama-3.1-8b", "--hardware", "rtx-4090", "--global-batch", "64", "--sweep", "devices=2,16,32")
    code, out, _ = danlu("plan", *arguments)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0][0] == "devices" and [row[0] for row in rows[1:]] == ["2", "16", "32"]
    assert "does not fit" in out.splitlines()[1]
    answer = json.loads(danlu("plan", *arguments, "--json")[1])
    assert answer[0] == {"devices": "2", "plan": None}
    assert answer[2]["plan"]["step_seconds"] < answer[1]["plan"]["step_seconds"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("llama-3.1-8b", "--hardware", "h1000"), "hardware: 'h1000' is unknown; give one of a100-40gb"),
        (("llama-3.1-8b", "--hardware", "none.yaml"), "hardware: no file none.yaml"),
        (("llama-3.1-8b", "--hardware", "GBK.yaml"), "GBK.yaml: is not UTF-8 (byte 6); it looks like GBK"),
        (("GBK.json", "--hardware", "cpu"), "GBK.json: is not UTF-8 (byte 6); it looks like GBK"),
        (("nowhere", "--hardware", "cpu"), "nowhere: there is no such recipe, run, config.json or preset"),
        (("llama-3.1-8b",), "--hardware"),
        ((*MODEL, "train.steps=3"), "train.steps=3: only a recipe has fields to override"),
        ((*MODEL, "--sweep", "colour=1"), "--sweep: 'colour' cannot be swept; give one of devices"),
        ((*MODEL, "--sweep", "devices=a"), "--sweep devices: 'a' is not a positive whole number"),
        ((*MODEL, "--sweep", "devices="), "--sweep devices: has no values"),
    ],
)
def test_errors_name_the_field(
    danlu: Call, arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GBK.yaml", "GBK.json"):
        Path(name).write_bytes("name: 炼丹".encode("gb18030"))
    code, out, err = danlu("plan", *arguments)
    assert (code, out) == (2, "")
    assert says in err and err.count("\n") == 1


def test_options_of_a_model_are_refused_beside_a_recipe(danlu: Call, recipe_file: Path) -> None:
    code, _, err = danlu("plan", recipe_file, "--hardware", "cpu", "--global-batch", 4)
    assert code == 2 and "--global-batch: a recipe says that itself; override it: train.global_batch=..." in err


def test_what_does_not_fit_is_told_by_the_exit_code(danlu: Call) -> None:
    arguments = ("plan", "llama-3.1-405b", "--hardware", "rtx-4090")
    for more in (("--devices", 1), ("--devices", 1, "--json"), ("--sweep", "devices=1,2"), ("--sweep", "devices=1", "--json")):
        code, out, err = danlu(*arguments, *more)
        assert code == 4 and out and not err


def test_a_picture_of_nothing_is_not_drawn(danlu: Call, tmp_path: Path) -> None:
    picture = tmp_path / "x.svg"
    code, out, err = danlu("plan", "llama-3.1-405b", "--hardware", "rtx-4090", "--devices", 1, "--timeline", picture, "--verify")
    assert code == 4 and "change   " in out and not picture.exists()
    assert "--timeline: nothing fits" in err and "--verify: nothing fits" in err

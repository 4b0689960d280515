"""Hardware files: all shipped ones load and name their sources; wrong ones are one clear line."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from danlu.errors import UserError
from danlu.plan.hardware import load, names

WANTED = [
    "a100-40gb",
    "a100-80gb",
    "a800-80gb",
    "h100-80gb",
    "h100-96gb",
    "h200",
    "h800-80gb",
    "h20-96gb",
    "l40s",
    "rtx-4090",
    "ascend-910b",
    "p800",
    "cpu",
]


@pytest.mark.parametrize("name", WANTED)
def test_shipped(name: str) -> None:
    found = load(name)
    assert found.name == name and name in names()
    assert found.rate("fp8") >= found.rate("bf16") >= found.rate("fp32") > 0


@pytest.mark.parametrize("name", WANTED)
def test_every_number_has_a_source(name: str) -> None:
    text = (resources.files("danlu.plan") / "hardware" / f"{name}.yaml").read_text("utf-8")
    for line in text.splitlines():
        if any(character.isdigit() for character in line.split("#")[0].split(":")[-1]) and not line.startswith(("  ", "name")):
            assert "#" in line, line


def test_own_file(tmp_path: Path) -> None:
    text = (resources.files("danlu.plan") / "hardware" / "h200.yaml").read_text("utf-8")
    (tmp_path / "mine.yaml").write_text(text.replace("name: h200", "name: mine"), "utf-8")
    assert load(str(tmp_path / "mine.yaml")).name == "mine"


@pytest.mark.parametrize(
    "text, message", [("name: x", "family"), ("a: [", "not valid YAML"), ("", "mine"), ("name: x\nspeed: 3", "speed|family")]
)
def test_wrong_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / f"mine-{abs(hash(text))}.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=message):
        load(str(path))


@pytest.mark.parametrize("name", ["h1000", "missing.yaml", ""])
def test_unknown(name: str) -> None:
    with pytest.raises(UserError, match="h100-80gb"):
        load(name)

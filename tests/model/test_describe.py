from __future__ import annotations

import subprocess
import sys

import pytest

from danlu.model.describe import describe, human_bytes, human_count, human_flops, preset_rows
from danlu.model.presets import PRESETS, preset


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1 k"),
        (1234, "1.23 k"),
        (41_689_600, "41.7 M"),
        (999_600, "1 M"),
        (405_853_388_800, "406 B"),
        (7e15, "7000 T"),
    ],
)
def test_human_count(value: float, text: str) -> None:
    assert human_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1000, "1000 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1023 * 1024, "1023 KiB"), (80 * 1024**3, "80 GiB")],
)
def test_human_bytes(value: float, text: str) -> None:
    assert human_bytes(value) == text


def test_human_flops() -> None:
    assert [human_flops(value) for value in (12, 262_668_288, 2.5e12)] == ["12 FLOP", "263 MFLOP", "2.5 TFLOP"]


def test_describe_llama_42m() -> None:
    rows = {(row.section, row.label): row for row in describe(preset("llama-42m"), sequence_length=256, precision="bf16")}
    assert rows["parameters", "total"].value == 41_689_600
    assert rows["parameters", "head (tied)"].value == 0
    assert rows["parameters", "without embeddings"].text == "25.3 M"
    flops = rows["training FLOPs a token at 256 tokens", "as MFU counts them (full attention square)"]
    assert flops.value == 6 * (41_689_600 - 17 * 512) + 12 * 8 * 512 * 256
    state = "training state, bf16"
    assert rows[state, "weights (FP32)"].value == 4 * 41_689_600
    assert rows[state, "bf16 copy of the weights"].value == 2 * (41_689_600 - 17 * 512)
    assert rows[state, "total"].text == "716 MiB"


def test_what_does_not_exist_has_no_row() -> None:
    labels = [row.label for row in describe(preset("llama-2-7b"), sequence_length=4096)]
    assert "head" in labels
    assert not any("copy" in label for label in labels)


def test_presets_are_listed_smallest_first() -> None:
    rows = preset_rows()
    assert {name for name, _, _ in rows} == set(PRESETS)
    assert rows[0][:2] == ("llama-5m", "5.26 M")
    assert rows[-1] == ("llama-3.1-405b", "406 B", preset("llama-3.1-405b"))


def test_the_room_needs_no_framework() -> None:
    modules = "presets families counts rope initialisation describe"
    code = "; ".join(f"import danlu.model.{name}" for name in modules.split())
    code += "; import sys; print(*{'torch', 'paddle', 'transformers', 'tokenizers', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

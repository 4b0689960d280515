"""`danlu plan --from-runs` and `--coordinate-check`, on run folders as training leaves them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from danlu import recipe as recipes
from danlu.files import write_json
from danlu.model.counts import parameter_parts
from danlu.recipe import parse, resolve_shape
from danlu.watch.store import Recorder

Call = Callable[..., Any]
WIDTHS = (64, 128, 256)
RATES = (1e-3, 2e-3, 4e-3)
STEPS = 100


def tree(width: int, rate: float, **train: Any) -> dict[str, Any]:
    """A small model with µP, trained on 100 x 8 x 64 tokens."""
    return {
        "name": f"small-{width}-{rate}-{train.get('steps', STEPS)}",
        "model": {
            "layers": 2,
            "hidden_size": width,
            "ffn_size": 3 * width,
            "heads": width // 32,
            "mup": {"base_hidden_size": 64},
        },
        "data": {"sources": [{"path": "corpus"}], "tokenizer": {"train": {"vocab_size": 512}}, "sequence_length": 64},
        "train": {"steps": STEPS, "global_batch": 8, "optimizer": {"learning_rate": rate}} | train,
    }


def loss_of(width: int, rate: float, steps: int) -> float:
    """A law, and a parabola around a rate of 2.2e-3."""
    size = parameter_parts(resolve_shape(parse(tree(width, rate)), None)).non_embedding
    return 1.5 + 60 / size**0.35 + 40 / (steps * 512) ** 0.3 + 0.1 * math.log(rate / 2.2e-3) ** 2


def write(root: Path, made: dict[str, Any], done: int | None = None, loss: float | None = None, stop: bool = False) -> Path:
    """A run folder as training leaves it after so many steps."""
    recipe = parse(made)
    steps = recipe.train.steps
    folder = root / recipe.name
    (folder / "data").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipes.dump(recipe))
    write_json(folder / "shape.json", resolve_shape(recipe, 512).model_dump(mode="json"))
    index = {"tokenizer": {"sha256": "t"}, "splits": {"train": {"tokens": 1_000_000}, "validation": {"shards": ["v"]}}}
    write_json(folder / "data/index.json", index)
    if loss is None:
        loss = loss_of(made["model"]["hidden_size"], made["train"]["optimizer"]["learning_rate"], steps)
    done = steps if done is None else done
    with Recorder.open(folder / "metrics.sqlite") as recorder:
        recorder.start_segment(1, {})
        for step in (1, done):
            recorder.scalars(step, {"train/loss": loss})
        if done == steps:
            recorder.scalars(done, {"validation/loss": loss})
        if stop:
            recorder.event(done, "skipped_step", "the loss is not finite")
            recorder.event(done, "stop", "3 steps in a row were not finite")
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three widths at three learning rates, and each twice as long at one."""
    for width in WIDTHS:
        for rate in RATES:
            write(tmp_path, tree(width, rate))
        write(tmp_path, tree(width, 2e-3, steps=2 * STEPS))
    return tmp_path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    file = tmp_path / "large.yaml"
    file.write_text(recipes.dump(parse(tree(512, 3e-4, steps=1000, global_batch=16))))
    return file


def test_it_predicts_the_loss_and_carries_the_rate_over(danlu: Call, small: Path, large: Path) -> None:
    code, out, err = danlu("plan", large, "--from-runs", small / "small-*", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    truth = loss_of(512, 2.2e-3, 2000)
    assert answer["loss_low"] < truth < answer["loss_high"] and answer["loss"] == pytest.approx(truth, rel=0.05)
    assert (answer["runs"], len(answer["sizes"]), answer["tokens"]) == (12, 3, 1000 * 16 * 64)
    assert answer["learning_rate"]["rate"] == pytest.approx(2.2e-3, rel=1e-3)
    assert [each["learning_rate"] for each in answer["sizes"]] == pytest.approx([2.2e-3] * 3)
    # The batch of the runs, for as many tokens.
    assert answer["patch"] == {"global_batch": 8, "steps": 2000, "optimizer": {"learning_rate": 0.0022}}


def test_what_it_prints_can_be_pasted(danlu: Call, small: Path, large: Path) -> None:
    """A shell spells a glob out; the runs are then arguments of their own, and overrides may stand among them."""
    runs = sorted(small.glob("small-*"))
    code, out, _ = danlu("plan", large, "--from-runs", *runs, "train.global_batch=8")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["loss", "rate", "law"]
    assert "unchanged, by µP" in out.splitlines()[1]
    pasted = re.search(r"^train: +(\{.*\})$", out, re.MULTILINE)
    assert pasted is not None
    assert YAML(typ="safe").load(pasted[0]) == {"train": {"optimizer": {"learning_rate": 0.0022}}}


def test_it_needs_no_framework(small: Path, large: Path) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'paddle', 'scipy'))); from danlu.cli import main; main()"
    command = [sys.executable, "-c", blocked, "plan", str(large), "--from-runs", f"{small}/small-*"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("loss     ")


def test_unfinished_runs_are_left_out_and_diverged_ones_bound_the_rate(danlu: Call, small: Path, large: Path) -> None:
    write(small, tree(64, 8e-3), done=40, stop=True)
    write(small, tree(128, 8e-3), done=40)
    code, out, _ = danlu("plan", large, "--from-runs", f"{small}/small-*", "--json")
    answer = json.loads(out)
    assert (code, answer["runs"]) == (0, 13)
    assert any("small-128-0.008-100 is left out: 40 of 100 steps" in note for note in answer["notes"])
    assert answer["sizes"][0]["runs"] == 5 and answer["sizes"][0]["high"] == 4e-3


def test_without_mup_and_without_a_sweep(danlu: Call, tmp_path: Path) -> None:
    def plain(width: int) -> dict[str, Any]:
        made = tree(width, 1e-3)
        del made["model"]["mup"]
        return made

    for width in (64, 128):
        write(tmp_path, plain(width))
    (tmp_path / "large.yaml").write_text(recipes.dump(parse(plain(256))))
    answer = json.loads(danlu("plan", tmp_path / "large.yaml", "--from-runs", f"{tmp_path}/small-*", "--json")[1])
    assert answer["learning_rate"] is None and answer["patch"] == {}
    assert any("none can be called the best" in note for note in answer["notes"])
    assert any("as many tokens" in note for note in answer["notes"])


def test_a_size_at_a_rate_that_does_not_suit_it_is_told(danlu: Call, tmp_path: Path, large: Path) -> None:
    for rate in RATES:
        write(tmp_path, tree(64, rate))
    for rate, told in ((2e-3, False), (2e-4, True)):
        write(tmp_path, tree(128, rate))
        runs = [f"{tmp_path}/small-64-*", tmp_path / f"small-128-{rate}-100"]
        notes = json.loads(danlu("plan", large, "--from-runs", *runs, "--json")[1])["notes"]
        assert any("and 2.2e-03 suits them" in note for note in notes) == told


def refusal(outcome: Any) -> str:
    code, out, err = outcome
    assert (code, out) == (2, "") and len(err.splitlines()) == 1, err
    return str(err)


def test_what_does_not_go_together_is_refused(danlu: Call, small: Path, large: Path, tmp_path: Path) -> None:
    def ask(*runs: object, recipe: object = large) -> str:
        return refusal(danlu("plan", recipe, "--from-runs", *runs))

    assert "two sizes" in ask(f"{small}/small-64-*")
    assert "names no folder" in ask(f"{small}/none-*")
    assert "not a run folder" in ask(tmp_path)
    other = tree(128, 1e-3) | {"name": "family"}
    other["model"]["qkv_bias"] = other["model"]["output_bias"] = True
    assert "model.qkv_bias is True" in ask(small / "small-64-0.001-100", write(tmp_path / "other", other))
    data = tree(128, 1e-3) | {"name": "data"}
    data["data"]["sources"] = [{"path": "elsewhere"}]
    assert "data.sources" in ask(small / "small-64-0.001-100", write(tmp_path / "other", data))
    tokenizer = write(tmp_path / "other", tree(128, 1e-3) | {"name": "tokens"})
    write_json(tokenizer / "data/index.json", {"tokenizer": {"sha256": "u"}, "splits": {"validation": {"shards": ["v"]}}})
    assert "its tokenizer is not that of" in ask(small / "small-64-0.001-100", tokenizer)
    unfinished = write(tmp_path / "other", tree(128, 1e-3) | {"name": "unfinished"}, done=3)
    assert "no run is over" in ask(unfinished)
    (tokenizer / "shape.json").write_text("{}")
    assert "damaged" in ask(tokenizer)
    plain = tmp_path / "plain.yaml"
    made = tree(512, 1e-3)
    del made["model"]["mup"]
    plain.write_text(recipes.dump(parse(made)))
    assert "the recipe: model.mup is None" in ask(f"{small}/small-*", recipe=plain)


def test_options_that_would_be_ignored_are_refused(danlu: Call, large: Path) -> None:
    assert "--hardware plans a layout" in refusal(danlu("plan", large, "--from-runs", "x", "--hardware", "cpu"))
    assert "--sweep plans a layout" in refusal(danlu("plan", large, "--coordinate-check", "--sweep", "devices=1,2"))
    assert "ask one at a time" in refusal(danlu("plan", large, "--coordinate-check", "--from-runs", "x"))
    assert "--hardware is missing" in refusal(danlu("plan", large))


def test_the_coordinate_check(danlu: Call, large: Path) -> None:
    fast = (
        "train.device=cpu",
        "train.optimizer.learning_rate=5e-3",
        "model.hidden_size=128",
        "model.heads=4",
        "data.sequence_length=16",
    )
    code, out, _ = danlu("plan", large, "--coordinate-check", *fast)
    assert code == 0 and out.startswith("flat ")
    check = json.loads(danlu("plan", large, "--coordinate-check", *fast, "model.mup=null", "train.dropout=0.1", "--json")[1])
    assert not check["flat"] and not check["mup"] and check["worst_growth"] > 0.4
    assert check["widths"] == [32, 64, 128, 256]
    assert set(check["parts"]) == {"embedding", "first attention", "first MLP", "last attention", "last MLP", "logits"}


def test_a_larger_model_that_is_worse_is_told(danlu: Call, small: Path, large: Path) -> None:
    write(small, tree(512, 2e-3), loss=9.0)
    notes = json.loads(danlu("plan", large, "--from-runs", f"{small}/small-*", "--json")[1])["notes"]
    assert sum("end with a higher loss than" in note for note in notes) == 3


def test_a_size_that_always_diverged_says_nothing(danlu: Call, small: Path, large: Path) -> None:
    for rate in RATES:
        write(small, tree(32, rate), done=20, stop=True)
    answer = json.loads(danlu("plan", large, "--from-runs", f"{small}/small-*", "--json")[1])
    assert (answer["runs"], len(answer["sizes"])) == (15, 3)

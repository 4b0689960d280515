"""`danlu run`: what it says, what it reuses, and that the commands it recommends work."""

from __future__ import annotations

import io
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu import recipe as recipes
from danlu import stages
from danlu.errors import UserError
from danlu.pipeline import next_commands, run_stages
from danlu.run_folder import RunFolder
from danlu.watch import store

Call = Callable[..., Any]


def run_again(run: RunFolder, recipe_file: Path, *overrides: str) -> str:
    """`danlu run` on a run folder, as the command line does it; what it prints."""
    recipe = recipes.load(recipe_file, overrides)
    stream = io.StringIO()
    run_stages(recipe, RunFolder.create(recipe, run.path), stream)
    return stream.getvalue()


def told(printed: str, row: str) -> str:
    """A row under `What happened`."""
    lines = printed.split("What happened\n")[1].splitlines()
    return next(line.split(None, 1)[1] for line in lines if line.split()[:1] == [row])


def written(run: RunFolder) -> dict[str, int]:
    """When each file of the run was written. The recipe is written at every start."""
    files = (path for path in run.path.rglob("*") if path.is_file() and path.name != "recipe.yaml")
    return {str(path.relative_to(run.path)): path.stat().st_mtime_ns for path in files}


def test_a_first_run_says_what_it_did(trained_folder: tuple[RunFolder, str]) -> None:
    run, printed = trained_folder
    for number, stage in enumerate(("prepare", "train", "evaluate", "generate"), 1):
        assert f"[{number}/4] {stage}: " in printed
    assert told(printed, "stages") == "prepare, train, evaluate, generate"
    summary = json.loads((run.path / "summary.json").read_text())
    assert f"{summary['first_loss']:.3f} at the first step, {summary['last_loss']:.3f} at the last" == told(printed, "loss")
    assert told(printed, "report") == str(run.path / "report.html")
    assert printed.count("already prepared") == 0, "the data is opened once"


def test_the_summary_is_flat_and_agrees_with_the_metrics(trained_folder: tuple[RunFolder, str]) -> None:
    run, _ = trained_folder
    summary = json.loads((run.path / "summary.json").read_text())
    assert {"first_loss", "last_validation_loss", "seconds", "tokens_per_second"} <= summary.keys()
    assert all(isinstance(value, str | int | float) for name, value in summary.items() if name != "findings")
    assert isinstance(summary["findings"], list)
    steps, losses = store.series(run.metrics, "train/loss")
    _, validation = store.series(run.metrics, "validation/loss")
    assert (steps[0], steps[-1]) == (1, 12)
    assert summary["first_loss"] == pytest.approx(losses[0], rel=1e-6)
    assert summary["last_loss"] == pytest.approx(losses[-1], rel=1e-6)
    assert summary["last_validation_loss"] == pytest.approx(validation[-1], rel=1e-6)
    assert summary["last_validation_loss"] < summary["first_loss"]
    assert summary["tokens"] == 12 * 8 * 32
    _, seconds = store.series(run.metrics, "time/step")
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / sum(seconds), rel=1e-3)
    assert summary["seconds"] > sum(seconds)


def test_a_finished_run_is_reused_as_a_whole(
    run_copy: RunFolder, recipe_file: Path, trained_folder: tuple[RunFolder, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.engines.create", lambda *_: pytest.fail("a model was built"))
    before = written(run_copy)
    printed = run_again(run_copy, recipe_file)
    assert written(run_copy) == before
    assert told(printed, "stages") == "prepare (reused), train (reused), evaluate (reused), generate (reused)"
    assert "already trained: 12 of 12 steps" in printed
    for row in ("model", "loss", "validation", "speed"):
        assert told(printed, row) == told(trained_folder[1], row)
    samples = [block.split("\n\n")[0].split("\n    ")[0] for block in printed.split("continued:\n")[1:]]
    assert samples == [block.split("\n\n")[0].split("\n    ")[0] for block in trained_folder[1].split("continued:\n")[1:]]


def test_what_is_missing_is_done_again_and_nothing_else(run_copy: RunFolder, recipe_file: Path) -> None:
    expected = json.loads((run_copy.path / "samples.json").read_text())
    (run_copy.path / "samples.json").unlink()
    printed = run_again(run_copy, recipe_file)
    assert told(printed, "stages") == "prepare (reused), train (reused), evaluate (reused), generate"
    assert json.loads((run_copy.path / "samples.json").read_text()) == expected


def test_other_prompts_are_continued(run_copy: RunFolder, recipe_file: Path) -> None:
    printed = run_again(run_copy, recipe_file, "generate.prompts=['import ']")
    assert told(printed, "stages") == "prepare (reused), train (reused), evaluate (reused), generate"
    assert "--- prompt 'import ', continued:\nimport " in printed
    assert "import " in (run_copy.path / "report.html").read_text(encoding="utf-8")


def test_a_lost_checkpoint_is_trained_again_and_all_that_follows(run_copy: RunFolder, recipe_file: Path) -> None:
    """The last one is damaged: the run goes on from the one before, and its old figures do not stand for the new weights."""
    weights = run_copy.checkpoints / "step-00000012" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    loss = json.loads((run_copy.path / "evaluation.json").read_text())["loss"]
    printed = run_again(run_copy, recipe_file)
    assert printed.count("step-00000012 is damaged") == 1
    assert "after step 10 of 12" in printed.split("What happened")[0]
    assert told(printed, "stages").startswith("prepare (reused), train, evaluate")
    assert json.loads((run_copy.path / "evaluation.json").read_text())["loss"] == pytest.approx(loss, rel=1e-6)


def test_a_damaged_checkpoint_of_a_finished_run_is_named_once(run_copy: RunFolder, recipe_file: Path) -> None:
    """One beyond the last step, so that nothing is trained again; train, evaluate and generate all look past it."""
    shutil.copytree(run_copy.checkpoints / "step-00000012", run_copy.checkpoints / "step-00000013")
    (run_copy.checkpoints / "step-00000013" / "model.safetensors").write_bytes(b"")
    (run_copy.path / "samples.json").unlink()
    printed = run_again(run_copy, recipe_file)
    assert told(printed, "stages") == "prepare (reused), train (reused), evaluate (reused), generate"
    assert printed.count("step-00000013 is damaged") == 1


def test_a_run_with_an_export(run_copy: RunFolder, recipe_file: Path) -> None:
    stages_ = "stages=[prepare, train, evaluate, generate, export]"
    printed = run_again(run_copy, recipe_file, stages_)
    assert f"wrote {run_copy.export}" in printed
    assert told(printed, "stages").endswith("generate (reused), export")
    assert {path.name for path in run_copy.export.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert f"danlu export {run_copy.path} --replace" in printed
    assert "wrote" in run_again(run_copy, recipe_file, stages_), "the stage replaces its own export"


def test_a_run_without_training(recipe_file: Path, tmp_path: Path) -> None:
    recipe = recipes.load(recipe_file, ["stages=[prepare]"])
    run = RunFolder.create(recipe, tmp_path / "runs" / "tiny")
    stream = io.StringIO()
    run_stages(recipe, run, stream)
    assert told(stream.getvalue(), "stages") == "prepare"
    assert f"danlu train {run.path}" in stream.getvalue()
    assert not (run.path / "summary.json").exists()
    assert told(run_again(run, recipe_file, "stages=[prepare]"), "stages") == "prepare (reused)"


def test_a_stage_that_needs_training_says_so(recipe_file: Path, tmp_path: Path) -> None:
    recipe = recipes.load(recipe_file, ["stages=[generate]"])
    with pytest.raises(UserError, match="nothing is trained yet"):
        run_stages(recipe, RunFolder.create(recipe, tmp_path / "tiny"), io.StringIO())


def test_two_processes_do_not_work_on_one_run(run_copy: RunFolder, recipe_file: Path) -> None:
    with stages.writing(run_copy), pytest.raises(UserError, match="another danlu process works on this run"):
        run_again(run_copy, recipe_file)


@pytest.mark.parametrize("readme", [None, "", "# 炉火\nthe quick brown fox\n"])
@pytest.mark.parametrize("exported", [False, True])
def test_the_recommended_commands_work_as_they_stand(
    run_copy: RunFolder, danlu: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, readme: str | None, exported: bool
) -> None:
    place = tmp_path / "a folder"
    (place / "runs").mkdir(parents=True)
    run_copy.path.rename(place / "runs" / "it's tiny")
    monkeypatch.chdir(place)
    run = RunFolder(Path("runs/it's tiny"))
    if readme is not None:
        Path("README.md").write_text(readme, encoding="utf-8")
    if exported:
        assert danlu("export", run.path).code == 0
    recommended = next_commands(run.load_recipe(), run)
    assert len(recommended) == 3
    assert any("README.md" in command for command in recommended) == bool(readme)
    for command in recommended:
        name, *arguments = shlex.split(command)
        assert name == "danlu"
        code, out, err = danlu(*arguments)
        assert (code, err) == (0, ""), command
        assert out


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("['', '  ', \"it's\"]", "--prompt 'it'\"'\"'s'"),
        ('["import os\\n", "炉火"]', "--prompt 炉火"),
        ("['']", "--prompt 'The '"),
    ],
)
def test_the_recommended_prompt_is_the_recipe_s(run_copy: RunFolder, recipe_file: Path, prompts: str, expected: str) -> None:
    recipe = recipes.load(recipe_file, [f"generate.prompts={prompts}"])
    command = next_commands(recipe, run_copy)[0]
    assert shlex.split(command)[-2:] == shlex.split(expected)
    assert "\n" not in command


def test_a_run_that_holds_nothing_out_is_shown_instead_of_evaluated(
    run_copy: RunFolder, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = ["data.validation_fraction=0", "train.evaluate_every=0", "stages=[prepare, train]"]
    assert next_commands(recipes.load(recipe_file, nothing), run_copy)[1] == f"danlu recipe show {run_copy.path}"

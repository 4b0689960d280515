"""An export opens in transformers as the same model and tokenizer, and comes back into danlu as the same model."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from danlu import export as exports
from danlu import recipe as recipes
from danlu import stages
from danlu.engines import create
from danlu.errors import DanluError, UserError
from danlu.pipeline import run_stages
from danlu.run_folder import RunFolder

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Call = Callable[..., Any]
TEXTS = [
    "炉火纯青，百炼成钢。🐉",
    "def f(x: int) -> str:\n\treturn '模型'  # é\r\n",
    "  two  blanks and a tab\t\n\n\n",
    "\x00\x07 control",
    "",
]
FAMILIES = {
    "llama": [],
    "mistral": ["model.family=mistral", "model.sliding_window=16"],
    "qwen2": ["model.family=qwen2", "model.qkv_bias=true", "model.tied_embeddings=true"],
    "qwen3": ["model.family=qwen3", "model.qk_norm=true", "model.head_size=16"],
}


@pytest.fixture(scope="module")
def trained(trained_folder: tuple[RunFolder, str]) -> stages.Trained:
    return stages.open_trained(trained_folder[0], lambda line: None)


@pytest.fixture(scope="module")
def exported(trained: stages.Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exports.export(trained, tmp_path_factory.mktemp("exports") / "model", "fp32", replace=False)


def transformers_model(folder: Path, **settings: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **settings).eval()


def transformers_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


# --- out -----------------------------------------------------------------------------------------------------------------------


def test_the_same_logits_in_transformers(trained: stages.Trained, exported: Path) -> None:
    ids = torch.tensor([trained.tokenizer.encode("炉火 the quick brown fox 🐉 def return")])
    with torch.no_grad():
        own, theirs = trained.engine.model(ids), transformers_model(exported)(ids).logits  # type: ignore[attr-defined]
    assert own.abs().max() > 1  # trained, not all alike
    torch.testing.assert_close(own, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_logits_for_every_family(trained: stages.Trained, recipe_file: Path, tmp_path: Path, family: str) -> None:
    recipe = recipes.load(recipe_file, FAMILIES[family])
    shape = recipes.resolve_shape(recipe, trained.prepared.vocab_size)
    engine = create(recipe, shape)
    engine.initialise()
    folder = exports.export(
        trained._replace(engine=engine, shape=shape, recipe=recipe), tmp_path / "model", "fp32", replace=False
    )
    ids = torch.randint(0, shape.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own, theirs = engine.model(ids), transformers_model(folder)(ids).logits  # type: ignore[attr-defined]
    torch.testing.assert_close(own, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_tokens_in_transformers(trained: stages.Trained, exported: Path, text: str) -> None:
    theirs = transformers_tokenizer(exported)
    ids = trained.tokenizer.encode(text)
    assert theirs(text, add_special_tokens=False)["input_ids"] == ids
    assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text
    assert (theirs.bos_token_id, theirs.eos_token_id) == (trained.tokenizer.begin_id, trained.tokenizer.end_id)


def test_transformers_continues_a_prompt_alike(trained: stages.Trained, exported: Path) -> None:
    theirs, model = transformers_tokenizer(exported), transformers_model(exported)
    ids = [trained.tokenizer.begin_id, *trained.tokenizer.encode("the quick")]
    made = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
    greedy = trained.recipe.generate.model_copy(update={"temperature": 0.0, "max_tokens": 8})
    assert "".join(stages.generate(trained, "the quick", greedy)) == theirs.decode(made, skip_special_tokens=True)


@pytest.mark.parametrize(("dtype", "torch_dtype", "size"), [("bf16", torch.bfloat16, 0.5), ("fp16", torch.float16, 0.5)])
def test_half_precision(
    trained: stages.Trained, exported: Path, tmp_path: Path, dtype: str, torch_dtype: torch.dtype, size: float
) -> None:
    folder = exports.export(trained, tmp_path / "half", dtype, replace=False)
    weights = transformers_model(folder, dtype="auto").state_dict()
    whole = transformers_model(exported).state_dict()
    assert {tensor.dtype for tensor in weights.values()} == {torch_dtype}
    assert all(torch.equal(weights[name], tensor.to(torch_dtype)) for name, tensor in whole.items())
    ratio = (folder / "model.safetensors").stat().st_size / (exported / "model.safetensors").stat().st_size
    assert ratio == pytest.approx(size, abs=0.02)


def test_loss_of_transformers_is_what_evaluate_says(trained: stages.Trained, exported: Path, tmp_path: Path) -> None:
    """One document shorter than a sequence, so that both see the whole of it."""
    text = "炉火 the quick brown"
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    result = stages.evaluate_file(trained, tmp_path / "one.txt", "text", lambda line: None)
    ids = torch.tensor([[trained.tokenizer.begin_id, *trained.tokenizer.encode(text), trained.tokenizer.end_id]])
    assert ids.shape[1] <= trained.recipe.data.sequence_length
    with torch.no_grad():
        loss = transformers_model(exported)(ids, labels=ids).loss.item()
    assert result["loss"] == pytest.approx(loss, abs=1e-5)


# --- and back ------------------------------------------------------------------------------------------------------------------


def test_an_export_is_trained_on(
    trained: stages.Trained, exported: Path, recipe_file: Path, corpus_file: Path, tmp_path: Path
) -> None:
    """A second recipe begins where the first one ended: its first loss, over all samples, is what `evaluate` measures."""
    overrides = [
        "name=second",
        "stages=[train]",
        f"model={{hugging_face: {exported}}}",
        f"data.tokenizer={{path: {exported}}}",
        "data.validation_fraction=0",
        "train.evaluate_every=0",
        "train.steps=1",
    ]
    measured = stages.evaluate_file(trained, corpus_file, "text", lambda line: None)
    tokens = trained.prepared.train.tokens + trained.prepared.validation.tokens
    samples = (tokens - 1) // 32
    recipe = recipes.load(recipe_file, [*overrides, f"train.global_batch={samples}", f"memory.micro_batch={samples}"])
    run = RunFolder.create(recipe, tmp_path / "second")
    with open(os.devnull, "w") as stream:
        run_stages(recipe, run, stream)
    assert stages.Prepared.open(run.data).train.tokens == tokens
    # The two differ by the tokens behind the last whole sample only.
    assert json.loads((run.path / "summary.json").read_text())["first_loss"] == pytest.approx(measured["loss"], abs=2e-3)
    again = stages.open_trained(run, lambda line: None)
    assert again.tokenizer.fingerprint == trained.tokenizer.fingerprint


def test_an_imported_run_needs_what_it_came_from_no_more(
    danlu: Call, exported: Path, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own folder is enough to measure it, to export it, and to go on training."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(exported, "origin")
    command = ["train", recipe_file, "model={hugging_face: origin}", "data.tokenizer={path: origin}", "name=second"]
    assert danlu(*command).code == 0
    before = json.loads(danlu("evaluate", "runs/second", "--json").out)
    shutil.rmtree("origin")
    shutil.rmtree("runs/second/checkpoints/step-00000012")
    assert danlu(*command).err == ""
    after = json.loads(danlu("evaluate", "runs/second", "--json").out)
    assert {**after, "checkpoint": None} == {**before, "checkpoint": None}  # which notes the time that its steps took
    assert danlu("export", "runs/second", "--to", "again").code == 0
    assert json.loads(Path("again/config.json").read_text()) == json.loads((exported / "config.json").read_text())
    Path("runs/second/shape.json").write_text("{}")
    code, out, err = danlu("evaluate", "runs/second")
    assert (code, out) == (2, "") and err.startswith("danlu: runs/second/shape.json: damaged (vocab_size: Field required); ")
    assert err.count("\n") == 1


def test_import_and_export_change_no_weight(trained: stages.Trained, exported: Path, recipe_file: Path, tmp_path: Path) -> None:
    recipe = recipes.load(recipe_file, [f"model={{hugging_face: {exported}}}", f"data.tokenizer={{path: {exported}}}"])
    shape = recipes.resolve_shape(recipe, trained.prepared.vocab_size)
    engine = create(recipe, shape)
    engine.import_weights(exported)
    twice = exports.export(trained._replace(engine=engine, shape=shape), tmp_path / "twice", "fp32", replace=False)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (twice / name).read_bytes() == (exported / name).read_bytes(), name


# --- the folder ----------------------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_replaced_only_when_it_is_an_export(trained: stages.Trained, tmp_path: Path) -> None:
    folder = exports.export(trained, tmp_path / "deep" / "model", "fp32", replace=False)
    with pytest.raises(UserError, match="or --replace to overwrite it"):
        exports.export(trained, folder, "bf16", replace=False)
    (folder / "mine.txt").write_text("of the export before")
    exports.export(trained, folder, "bf16", replace=True)
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert not (folder / "mine.txt").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    other = tmp_path / "letters"
    other.mkdir()
    for replace in (False, True):
        with pytest.raises(UserError, match="exists and is no export"):
            exports.export(trained, other, "fp32", replace=replace)


def test_folders_beside_an_export_are_the_users_own(trained: stages.Trained, tmp_path: Path) -> None:
    own = ("model.partial", "model.previous", ".danlu-export-1")
    for name in own:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("mine")
    for replace in (False, True):
        exports.export(trained, tmp_path / "model", "fp32", replace=replace)
    assert {path.name for path in tmp_path.iterdir()} == {"model", *own}
    assert all((tmp_path / name / "model.safetensors").read_text() == "mine" for name in own)
    assert transformers_model(tmp_path / "model").config.vocab_size == trained.shape.vocab_size


def test_an_export_can_be_read_by_whom_the_umask_lets(trained: stages.Trained, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    folder = exports.export(trained, tmp_path / "model", "fp32", replace=False)
    assert folder.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_export_that_cannot_take_its_place_gives_it_back(
    trained: stages.Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exports.export(trained, tmp_path / "model", "fp32", replace=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if (source.name, target) == ("new", folder):
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DanluError, match="nothing was changed there"):
        exports.export(trained, folder, "bf16", replace=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_export_leaves_the_one_before(trained: stages.Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exports.export(trained, tmp_path / "model", "fp32", replace=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trained.engine, "export_weights", fail)
    with pytest.raises(DanluError, match="the disk is full"):
        exports.export(trained, folder, "bf16", replace=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_disk_that_fills_during_an_export(trained_folder: tuple[RunFolder, str], tmp_path: Path, dtype: str) -> None:
    """A real process under a real limit: 60 KB, and the weights take 168 KB or half of that."""
    run = shutil.copytree(trained_folder[0].path, tmp_path / "run")
    command = [sys.executable, "-m", "danlu", "export", str(run), "--to", "out/model", "--dtype", dtype]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
    )
    assert done.returncode == 1
    assert done.stderr == "danlu: out/model: cannot be written: the file size limit is reached; nothing was changed there\n"
    assert not list((tmp_path / "out").iterdir())


def test_a_place_that_cannot_be_written(trained: stages.Trained, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: .*; give another folder with --to"):
        exports.export(trained, tmp_path / "file" / "model", "fp32", replace=False)
    with pytest.raises(UserError, match="exists and is no export"):
        exports.export(trained, Path("/"), "fp32", replace=False)

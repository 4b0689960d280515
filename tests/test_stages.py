"""The stages against independent truths, and what they refuse."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers

from danlu import recipe as recipes
from danlu import stages
from danlu.data import tokenizer as danlu_tokenizer
from danlu.engines.base import Sampling
from danlu.errors import Interrupted, UserError
from danlu.run_folder import RunFolder
from danlu.train.continuation import text_pieces


def silent(line: str) -> None:
    """No report."""


@pytest.fixture(scope="module")
def trained(trained_folder: tuple[RunFolder, str]) -> stages.Trained:
    return stages.open_trained(trained_folder[0], silent)


# --- text as it is generated ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["炉火纯青 🐉🐉 données", "def f(x):\n    return '模型'\n", "a�b", "👩‍👩‍👧 e\u0301", "\x00\x1b tail "]
)
def test_pieces_are_whole_characters(trained: stages.Trained, text: str) -> None:
    ids = trained.tokenizer.encode(text)
    assert len(ids) > len(text) / 2  # the vocabulary is small, so that characters are cut
    pieces = list(text_pieces(trained.tokenizer, [], ids))
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces) or "�" in text
    assert all(pieces)


def test_the_end_of_a_cut_character_is_shown_when_nothing_follows(trained: stages.Trained) -> None:
    ids = trained.tokenizer.encode("🐉🦊")
    assert "".join(text_pieces(trained.tokenizer, [], ids[:-1])).startswith("🐉")
    assert "".join(text_pieces(trained.tokenizer, [], ids[:-1])).endswith("�")


def test_text_before_is_neither_repeated_nor_completed_wrongly(trained: stages.Trained) -> None:
    ids = trained.tokenizer.encode("训练 the 🐉 fox 模型")
    for cut in range(len(ids) + 1):
        before, whole = trained.tokenizer.decode(ids[:cut]), trained.tokenizer.decode(ids)
        if not before.endswith("�"):
            assert before + "".join(text_pieces(trained.tokenizer, ids[:cut], ids[cut:])) == whole


def test_a_piece_comes_as_soon_as_its_token(trained: stages.Trained) -> None:
    taken = []

    def tokens() -> Iterator[int]:
        for number in trained.tokenizer.encode("the the the"):
            taken.append(number)
            yield number

    first = next(text_pieces(trained.tokenizer, [], tokens()))
    assert "the".startswith(first.strip())
    assert len(taken) < len(trained.tokenizer.encode("the the the"))


def test_a_blank_between_prompt_and_continuation_stays(tmp_path: Path) -> None:
    """SentencePiece's decoder takes the blank off the first word of a text; a continuation does not begin a text."""
    vocabulary = {"<s>": 0, "</s>": 1, "▁Hello": 2, "▁world": 3, "!": 4}
    made = library.Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<s>", "</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    loaded = danlu_tokenizer.load(tmp_path, begin="<s>", end="</s>")
    assert loaded.decode([3]) == "world"
    assert list(text_pieces(loaded, [2], [3, 4])) == [" world", "!"]


# --- generation ----------------------------------------------------------------------------------------------------------------


def test_greedy_continuation_is_the_most_likely_token(trained: stages.Trained) -> None:
    """Against logits of the whole prompt, computed anew for every token, without a cache."""
    import torch

    settings = trained.recipe.generate.model_copy(update={"temperature": 0.0, "max_tokens": 10})
    text = "".join(stages.generate(trained, "the quick", settings))
    assert trained.tokenizer.begin_id is not None
    ids = [trained.tokenizer.begin_id, *trained.tokenizer.encode("the quick")]
    before = trained.tokenizer.decode(ids, skip_special_tokens=True)
    for _ in range(10):
        with torch.no_grad():
            best = int(trained.engine.model(torch.tensor([ids]))[0, -1].argmax())  # type: ignore[attr-defined]
        if best == trained.tokenizer.end_id:
            break
        ids.append(best)
    assert before + text == trained.tokenizer.decode(ids, skip_special_tokens=True)


def test_the_seed_decides_what_is_drawn(trained: stages.Trained) -> None:
    settings = trained.recipe.generate.model_copy(update={"temperature": 1.5, "top_p": 1.0})

    def drawn(seed: int, number: int = 0) -> str:
        return "".join(stages.generate(trained, "炉火", settings.model_copy(update={"seed": seed}), number))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1, number=1) == drawn(2), "the prompts of one call have seeds that follow each other"


def test_seeds_and_limits_at_the_end_of_their_range(trained: stages.Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sampling] = []

    def record(tokens: list[int], sampling: Sampling, end_id: int | None) -> list[int]:
        seen.append(sampling)
        return []

    monkeypatch.setattr(trained.engine, "generate", record)
    settings = stages.sampling_settings(trained.recipe, {"seed": 2**63 - 1, "top_k": 10**30})
    for number in range(2):
        assert list(stages.generate(trained, "the", settings, number)) == []
    assert [sampling.seed for sampling in seen] == [2**63 - 1, 0]
    assert {sampling.top_k for sampling in seen} == {trained.shape.vocab_size}


@pytest.mark.parametrize(
    ("prompt", "says"), [("the " * 200, "the model's context holds 128"), ("caf\udce9", "not UTF-8 (at character 3)")]
)
def test_a_bad_prompt_is_refused_before_anything_is_drawn(trained: stages.Trained, prompt: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        stages.generate(trained, prompt, trained.recipe.generate)  # not iterated
    assert says in str(refused.value)


def test_an_empty_prompt_begins_a_document(trained: stages.Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def record(tokens: list[int], sampling: Sampling, end_id: int | None) -> list[int]:
        seen.append(tokens)
        return []

    monkeypatch.setattr(trained.engine, "generate", record)
    assert list(stages.generate(trained, "", trained.recipe.generate)) == []
    monkeypatch.setattr(trained.tokenizer, "begin_id", None)
    assert list(stages.generate(trained, "", trained.recipe.generate)) == []
    ids = trained.tokenizer.encode("the")
    assert list(stages.generate(trained, "the", trained.recipe.generate)) == []
    assert seen == [[trained.prepared.begin_id], [trained.tokenizer.end_id], ids]


# --- evaluation ----------------------------------------------------------------------------------------------------------------


def naive_nats(trained: stages.Trained, stream: object, length: int) -> tuple[float, int]:
    """Document piece by document piece, through the plain forward and torch's own cross-entropy."""
    import torch

    tokens = stream.window(0, stream.tokens).astype(np.int64)  # type: ignore[attr-defined]
    starts = set(stream.document_starts(0, stream.tokens).tolist())  # type: ignore[attr-defined]
    nats, counted = 0.0, 0
    for first in range(0, len(tokens) - 1, length):
        last = min(first + length, len(tokens) - 1)  # inputs are [first, last), each predicts the next
        cuts = [first, *sorted(start for start in starts if first < start < last), last]
        for low, high in pairwise(cuts):
            with torch.no_grad():
                logits = trained.engine.model(torch.tensor(tokens[None, low:high]))[0]  # type: ignore[attr-defined]
            losses = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[low + 1 : high + 1]), reduction="none")
            keep = torch.tensor([position + 1 not in starts for position in range(low, high)])
            nats, counted = nats + float(losses[keep].double().sum()), counted + int(keep.sum())
    return nats, counted


def test_evaluation_equals_a_naive_loop(trained: stages.Trained, run_copy: RunFolder) -> None:
    result = stages.evaluate(trained)
    nats, counted = naive_nats(trained, trained.prepared.validation, 32)
    assert result["tokens"] == counted
    assert result["loss"] == pytest.approx(nats / counted, rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(nats / counted), rel=1e-4)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / trained.prepared.validation.text_bytes, rel=1e-5)
    (run_copy.path / "evaluation.json").unlink()
    stages.keep_evaluation(run_copy, result)
    assert json.loads((run_copy.path / "evaluation.json").read_text()) == result


def test_evaluation_of_a_file_counts_its_own_bytes(trained: stages.Trained, tmp_path: Path) -> None:
    text = "炉火纯青 the quick brown fox\n" * 20
    (tmp_path / "own.txt").write_text(text, encoding="utf-8")
    result = stages.evaluate_file(trained, tmp_path / "own.txt", "text", silent)
    assert (result["documents"], result["bytes"]) == (1, len(text.encode()))
    assert result["tokens"] == len(trained.tokenizer.encode(text)) + 1  # the end of the document, and not its begin
    assert not (tmp_path / "evaluation.json").exists()


def test_an_evaluation_that_overflows_is_still_a_number(trained: stages.Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained.engine, "evaluate", lambda batch: (1e6, 1))
    assert math.isfinite(stages.evaluate(trained)["perplexity"])


# --- what a run folder must hold -----------------------------------------------------------------------------------------------


def test_nothing_trained_yet(recipe_file: Path, tmp_path: Path) -> None:
    recipe = recipes.load(recipe_file)
    run = RunFolder.create(recipe, tmp_path / "run")
    with pytest.raises(UserError, match="nothing is trained yet"):
        stages.open_trained(run, silent)


def test_other_data_than_the_checkpoint_was_trained_on(run_copy: RunFolder, recipe_file: Path, tmp_path: Path) -> None:
    """Another tokenizer of the same size would load, and mean other words by the same numbers."""
    import shutil

    other = recipes.load(recipe_file, ["data.tokenizer.train.vocab_size=350"])
    shutil.rmtree(run_copy.data)
    stages.prepare(other, run_copy, silent)
    with pytest.raises(UserError, match="was trained on other data, or with another tokenizer"):
        stages.open_trained(run_copy, silent)


def test_finished_means_trained_to_the_last_step_on_this_data(run_copy: RunFolder, recipe_file: Path) -> None:
    recipe = run_copy.load_recipe()
    prepared = stages.prepare(recipe, run_copy, silent)
    summary = stages.finished(recipe, run_copy, prepared, silent)
    assert summary is not None and summary["steps"] == 12
    longer = recipes.load(recipe_file, ["train.steps=13"])
    assert stages.finished(longer, run_copy, prepared, silent) is None
    (run_copy.path / "summary.json").unlink()
    assert stages.finished(recipe, run_copy, prepared, silent) is None
    run_copy.write("summary.json", summary)
    weights = run_copy.checkpoints / "step-00000012" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    told: list[str] = []
    assert stages.finished(recipe, run_copy, prepared, told.append) is None
    assert told == [], "the training that follows says it"
    for checkpoint in run_copy.checkpoints.iterdir():
        (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UserError, match="checkpoints are damaged"):
        stages.finished(recipe, run_copy, prepared, told.append)
    assert len(told) == len(list(run_copy.checkpoints.iterdir())) > 1, "nothing follows"


def test_an_evaluation_is_kept_for_its_own_checkpoint_only(run_copy: RunFolder) -> None:
    newest = stages.newest(run_copy, silent)
    kept = stages.kept_evaluation(run_copy, newest)
    assert kept is not None and kept["step"] == 12
    run_copy.write("evaluation.json", {**kept, "checkpoint": kept["checkpoint"][:-1] + "x"})
    assert stages.kept_evaluation(run_copy, newest) is None
    run_copy.write("evaluation.json", [])
    assert stages.kept_evaluation(run_copy, newest) is None


@pytest.mark.parametrize(
    "override", ["generate.seed=1", "generate.prompts=['炉火']", "generate.prompts=['炉火', 'a ']", "generate.temperature=0.5"]
)
def test_samples_are_kept_for_their_own_settings_only(run_copy: RunFolder, recipe_file: Path, override: str) -> None:
    newest = stages.newest(run_copy, silent)
    assert len(stages.kept_samples(run_copy, newest, recipes.load(recipe_file).generate) or []) == 2
    assert stages.kept_samples(run_copy, newest, recipes.load(recipe_file, [override]).generate) is None
    run_copy.write("samples.json", ["text", "text"])
    assert stages.kept_samples(run_copy, newest, recipes.load(recipe_file).generate) is None


def test_the_versions_of_what_a_run_comes_from_are_kept(trained_folder: tuple[RunFolder, str]) -> None:
    import pyarrow
    import safetensors

    kept = json.loads((trained_folder[0].path / "environment.json").read_text())
    modules = {"numpy": np, "tokenizers": library, "pyarrow": pyarrow, "safetensors": safetensors}
    assert {name: kept[name] for name in modules} == {name: module.__version__ for name, module in modules.items()}
    assert kept["torch"]


def test_one_process_writes_a_run(run_copy: RunFolder) -> None:
    with stages.writing(run_copy), pytest.raises(UserError, match="another danlu process"), stages.writing(run_copy):
        pass
    with stages.writing(run_copy):  # free again
        pass


def test_how_a_run_ended_is_told_though_the_report_cannot_be_written(
    run_copy: RunFolder, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = run_copy.load_recipe()
    prepared = stages.prepare(recipe, run_copy, silent)

    def end(*_: object) -> None:
        raise Interrupted("stopped after step 3")

    monkeypatch.setattr(stages, "train_loop", end)
    (run_copy.path / "report.html").unlink()
    (run_copy.path / "report.html.partial").mkdir()  # nothing can be written there
    with pytest.raises(Interrupted, match="stopped after step 3"):
        stages.train(recipe, run_copy, prepared, io.StringIO())
    assert not (run_copy.path / "report.html").exists()
    (run_copy.path / "report.html.partial").rmdir()
    with pytest.raises(Interrupted):
        stages.train(recipe, run_copy, prepared, io.StringIO())
    assert (run_copy.path / "report.html").is_file()

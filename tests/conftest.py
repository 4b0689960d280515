"""What the tests of the command line share: a small corpus, a recipe over it, and one trained run."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from danlu import cli
from danlu import recipe as recipes
from danlu.engines.torch.process import yield_idle_cores
from danlu.pipeline import run_stages
from danlu.run_folder import RunFolder

yield_idle_cores()  # also where transformers imports torch before danlu does

TEXT = "炉火 纯青 the quick brown fox def return self import 🐉 données été 模型 训练 of and to a in that it is was"

RECIPE = """\
name: tiny
model: {{family: llama, layers: 2, hidden_size: 32, ffn_size: 64, heads: 4, kv_heads: 2, max_sequence_length: 128}}
data:
  sources: [{{path: {corpus}}}]
  tokenizer: {{train: {{vocab_size: 400}}}}
  sequence_length: 32
  validation_fraction: 0.1
  workers: 0
train:
  device: cpu
  steps: 12
  global_batch: 8
  optimizer: {{learning_rate: 1.0e-2}}
  evaluate_every: 6
memory: {{micro_batch: 4}}
generate: {{prompts: ["炉火", "the "], max_tokens: 12}}
checkpoint: {{every: 5}}
"""


class Outcome(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first, the slowest at their head, so that two processes are done at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != "test_docs.py", item.path not in slow))


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 short documents, Chinese and English mixed."""
    words = TEXT.split()
    texts = [f"{i}: " + " ".join(words[(i * 7 + j * j * (1 + i % 5)) % len(words)] for j in range(40)) for i in range(300)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def recipe_file(corpus_file: Path) -> Path:
    """A recipe that trains in a second; with one thread, since several mostly wait for each other in so small a model."""
    import torch

    torch.set_num_threads(1)
    path = corpus_file.with_name("tiny.yaml")
    path.write_text(RECIPE.format(corpus=corpus_file), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained_folder(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """The recipe's run, all stages done, and what it printed. Not to be changed."""
    recipe = recipes.load(recipe_file)
    run = RunFolder.create(recipe, tmp_path_factory.mktemp("runs") / "tiny")
    stream = io.StringIO()
    run_stages(recipe, run, stream)
    return run, stream.getvalue()


@pytest.fixture
def run_copy(trained_folder: tuple[RunFolder, str], tmp_path: Path) -> RunFolder:
    """A copy of the trained run that a test may change."""
    return RunFolder(Path(shutil.copytree(trained_folder[0].path, tmp_path / "runs" / "tiny")))


@pytest.fixture
def danlu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["danlu", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return call

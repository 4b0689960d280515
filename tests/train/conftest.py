"""What the tests of the training room share: a corpus that can be learned, prepared once; an engine with scripted results."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.engines.base import Batch, Engine, Observed, Snapshot, StepResult, StepSource
from danlu.errors import UserError
from danlu.recipe import Recipe, parse, resolve_shape
from danlu.train.loop import train

RecipeOf = Callable[..., Recipe]
Result = float | StepResult


class Scripted:
    """An engine whose step n (from 1) does what ``script(n)`` says: a loss, a whole result, or a side effect before it.

    Its weight is the number of updates done, so that a checkpoint shows what it was made of.
    """

    device = "cpu"
    rank = data_rank = 0

    def __init__(self, script: Callable[[int], Result], validation: Callable[[int], float] = lambda _step: 2.0) -> None:
        self.script, self.validation = script, validation
        self.weight: int | None = None
        self.rates: list[float] = []
        self.steps: list[int] = []
        self.before_save: Callable[[Path], None] = lambda _folder: None

    def agree(self, flag: bool) -> bool:
        return flag

    def replicas_differ(self) -> list[str]:
        return []

    def initialise(self) -> None:
        self.weight = 0

    def loader(self, source: StepSource, steps: range, workers: int) -> Iterator[Batch]:
        for step in steps:
            yield {**source[step], "step": np.array(step + 1)}

    def train_step(self, batch: Batch, learning_rate: float) -> StepResult:
        step = int(batch["step"])
        self.steps.append(step)
        self.rates.append(learning_rate)
        made = self.script(step)
        if not isinstance(made, StepResult):
            skipped = None if math.isfinite(made) else "the loss is not finite"
            made = StepResult(made, batch["inputs"].size, 1.0, skipped, 1.0)
        assert self.weight is not None
        self.weight += made.skipped is None
        return made

    def observed_step(self, batch: Batch, learning_rate: float, histograms: bool) -> tuple[StepResult, Observed]:
        return self.train_step(batch, learning_rate), Observed({}, {})

    def held_bytes(self) -> dict[str, int]:
        return {}

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        supervised = int((batch["targets"] != -100).sum())
        return self.validation(self.steps[-1]) * supervised, supervised

    def judge(self, batch: Batch) -> tuple[float, int, dict[str, float]]:
        return *self.evaluate(batch), {}

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def snapshot(self, copy: bool) -> Snapshot:
        taken = self.weight

        def write(folder: Path) -> list[Path]:
            self.before_save(folder)
            (folder / "weights.json").write_text(json.dumps(taken if copy else self.weight))
            return [folder / "weights.json"]

        return Snapshot({"rates": len(self.rates)}, write)

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        assert state.keys() == {"rates"}
        self.weight = json.loads((folder / "weights.json").read_text())

    def matmul_peak(self) -> float | None:
        return 1e15  # more than any step here does, whatever the clock says

    def device_memory(self) -> int | None:
        return None


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of a small grammar in two languages, the same in every run."""
    draw = random.Random(1)
    who, does = ["the cat", "the dog", "a river", "炉火", "模型"], ["sees", "likes", "训练", "finds"]
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = [" . ".join(" ".join(map(draw.choice, (who, does, who))) for _ in range(12)) for _ in range(300)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def recipe_of(corpus: Path) -> RecipeOf:
    """A tiny model on the corpus, with overrides such as ``train.steps=5``."""
    tree = {
        "name": "tiny",
        "stages": ["prepare", "train"],
        "model": {"layers": 2, "hidden_size": 64, "ffn_size": 128, "heads": 2},
        "data": {
            "sources": [{"path": str(corpus)}],
            "tokenizer": {"train": {"vocab_size": 400}},
            "sequence_length": 32,
            "validation_fraction": 0.1,
            "workers": 0,
        },
        "train": {
            "device": "cpu",
            "steps": 12,
            "global_batch": 8,
            "optimizer": {"learning_rate": 3e-3},
            "schedule": {"warmup_steps": 3},
        },
        "checkpoint": {"every": 1000, "keep": 2},
        "doctor": {"every": 0},
    }
    return lambda *overrides: parse(tree, overrides)


@pytest.fixture(scope="session")
def prepared(recipe_of: RecipeOf, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The corpus as tokens."""
    return prepare(recipe_of(), tmp_path_factory.mktemp("prepared") / "data", lambda _line: None)


@pytest.fixture
def run(prepared: Prepared, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    """Train below ``tmp_path``, or another folder; returns the summary and what was printed."""

    def start(recipe: Recipe, engine: Engine, folder: Path = tmp_path, data: Prepared = prepared) -> tuple[dict[str, Any], str]:
        stream = io.StringIO()
        summary = train(recipe, resolve_shape(recipe, data.vocab_size), engine, data, folder, stream)
        return summary, stream.getvalue()

    return start


@pytest.fixture
def torch_engine(prepared: Prepared) -> Iterator[Callable[[Recipe], Engine]]:
    """The real engine, with one thread: models this small compute faster so, above all beside other processes."""
    import torch

    from danlu.engines.torch.engine import TorchEngine

    def make(recipe: Recipe) -> Engine:
        engine = TorchEngine(recipe, resolve_shape(recipe, prepared.vocab_size))
        engine.matmul_peak = lambda: 1e11  # type: ignore[method-assign]  # a second of products each, and of no interest here
        return engine

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make
    torch.set_num_threads(threads)


@pytest.fixture
def refusal() -> Callable[[pytest.ExceptionInfo[UserError]], str]:
    """The message of an error, which is one line."""

    def text(caught: pytest.ExceptionInfo[UserError]) -> str:
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    return text

"""EleutherAI's lm-evaluation-harness on a model of danlu's: its task files, which lie here, by the executor that serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danlu import serving
from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.serve.engine import Engine
from danlu.serve.executor import Executor
from danlu.serve.model import Model
from danlu.serve.sampling import Sampling
from danlu.serve.score import Scorer

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the harness is imported: data that is not here is an error at once
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

try:
    import lm_eval
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager
except ImportError:
    raise UserError("--tasks takes EleutherAI's lm-eval, which is not installed: pip install 'danlu[tasks]'") from None

CACHE_TOKENS = 1 << 14
"""Of the key/value cache, or the model's context."""
NEW_TOKENS = 256
"""Of an answer, where a task does not say."""


def evaluate(path: Path, tasks: Sequence[Path], limit: int | None, report: Callable[[str], None]) -> dict[str, Any]:
    """The figures of task files, or of all tasks in folders, by task and metric; ``limit`` is of the first samples of each.

    UserError: a task or its data is not here, or the model cannot be opened.
    """
    from danlu.serve.load import load

    opened = serving.open_model(path, report)
    folders = [task for task in tasks if task.is_dir()]
    manager = TaskManager(include_path=folders or None, include_defaults=False)
    names = [str(task) for task in tasks if task.is_file()] + manager.all_subtasks
    if absent := [str(task) for task in tasks if not task.exists()]:
        raise UserError(f"--tasks: {', '.join(absent)} is not there; give YAML files of tasks, or folders with some")
    if not names:
        raise UserError(f"--tasks: no task in {', '.join(map(str, folders))}")
    context = opened.shape.max_sequence_length
    model = _Model(opened.model, load(opened.shape, opened.weights, opened.scheme, max(CACHE_TOKENS, context), "cpu"))
    try:
        found = lm_eval.simple_evaluate(model=model, tasks=names, task_manager=manager, limit=limit, log_samples=False)
    except (ConnectionError, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"--tasks: lm-eval cannot run {', '.join(names)}: {type(error).__name__}: {error}") from error
    assert found is not None
    return {
        name: {"samples": found["n-samples"][name]["effective"], **_figures(values)} for name, values in found["results"].items()
    }


def _figures(values: dict[str, Any]) -> dict[str, float]:
    """``acc,none`` is the metric acc through no filter."""
    pairs = ((name.partition(","), value) for name, value in values.items() if isinstance(value, int | float))
    return {metric if rule == "none" else f"{metric} ({rule})": float(value) for (metric, comma, rule), value in pairs if comma}


class _Model(TemplateLM):  # type: ignore[misc]
    """What the harness asks."""

    def __init__(self, model: Model, executor: Executor) -> None:
        super().__init__()
        self.model, self.executor, self.scorer = model, executor, Scorer(executor)
        self.tokens: Tokenizer = model.tokenizer

    @property
    def eot_token_id(self) -> int:
        return self.tokens.end_id

    @property
    def prefix_token_id(self) -> int:
        return self.tokens.end_id if self.tokens.begin_id is None else self.tokens.begin_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        begin = [] if add_special_tokens is False or self.tokens.begin_id is None else [self.tokens.begin_id]
        return begin + self.tokens.encode(string)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        return [self.scorer.score(context, continuation) for _, context, continuation in requests]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        return [self._rolling(*request.args) for request in requests]

    def _rolling(self, text: str) -> float:
        """Each token once, with what fits in front of it."""
        tokens, limit = self.tok_encode(text, add_special_tokens=False), self.scorer.limit
        windows = utils.get_rolling_token_windows(tokens, self.prefix_token_id, limit, context_len=1)
        return sum(self.scorer.score(*utils.make_disjoint_window(window))[0] for window in windows)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        engine = Engine(self.executor)
        self.scorer.held = []  # its cache is theirs now
        sequences = [self._sequence(engine, *request.args) for request in requests]
        made = dict.fromkeys(sequences, "")
        for sequence in sequences:
            engine.add(sequence)
        while engine.busy:
            for sequence, output in engine.step():
                made[sequence] += output.text
        return [made[sequence] for sequence in sequences]

    def _sequence(self, engine: Engine, context: str, asked: dict[str, Any]) -> Any:
        until = asked.get("until") or []
        most = int(asked.get("max_gen_toks", NEW_TOKENS))
        sampling = Sampling(
            max_tokens=most,
            temperature=float(asked.get("temperature", 0.0)) if asked.get("do_sample") else 0.0,
            top_p=float(asked.get("top_p", 1.0)),
            top_k=int(asked.get("top_k", 0)),
            stop=(until,) if isinstance(until, str) else tuple(until),
        )
        tokens = self.tok_encode(context) or [self.prefix_token_id]
        return self.model.sequence(tokens[-max(1, engine.limit - most) :], sampling)

"""Sequences for an engine, run to their ends."""

from __future__ import annotations

from typing import Any

from danlu.data.tokenizer import Tokenizer
from danlu.serve.engine import Engine
from danlu.serve.sampling import Sampling
from danlu.serve.sequence import Output, Sequence
from danlu.serve.text import TextStream


def sequence(tokenizer: Tokenizer, prompt: list[int], **settings: Any) -> Sequence:
    sampling = Sampling(**{"temperature": 0.0, "max_tokens": 20, "ignore_end": True, **settings})
    text = TextStream(tokenizer, prompt, sampling.stop)
    return Sequence(list(prompt), len(prompt), sampling, frozenset({tokenizer.end_id}), text)


def finish(engine: Engine, *sequences: Sequence) -> list[list[Output]]:
    """Run all to their ends together; what each has made."""
    made: dict[Sequence, list[Output]] = {each: [] for each in sequences}
    for each in sequences:
        engine.add(each)
    while engine.busy:
        for each, output in engine.step():
            made[each].append(output)
    assert engine.cache.held == 0
    return list(made.values())


def tokens_of(outputs: list[Output]) -> list[int]:
    return [output.token for output in outputs if output.token is not None]

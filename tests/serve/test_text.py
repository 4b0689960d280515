"""Text as it comes out of tokens: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopPLogitsWarper

from danlu.data.tokenizer import Tokenizer
from danlu.serve.sampling import Sampling, draw, log_probabilities
from danlu.serve.text import TextStream

TEXT = "the fox 炉火纯青 🐉🐉 données, quick 火 end"


def bytes_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a byte, so that characters are cut everywhere."""
    return [token for byte in text for token in _single(tokenizer, byte)]


def _single(tokenizer: Tokenizer, character: str) -> list[int]:
    names = tokenizer._tokenizer.get_vocab()
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [names[bytes_to_unicode()[byte]] for byte in character.encode()]


def stream(tokenizer: Tokenizer, tokens: list[int], stop: tuple[str, ...]) -> tuple[list[str], bool]:
    text, pieces = TextStream(tokenizer, [], stop), []
    for token in tokens:
        pieces.append(text.push(token))
        if text.stopped:
            return pieces, True
    return [*pieces, text.finish()], text.stopped


@pytest.mark.parametrize("stop", [(), ("火",), ("quick", "qui"), ("🐉, ",), ("🐉🐉 d", "zz"), ("d",), ("end!",), ("青 🐉",)])
@pytest.mark.parametrize("whole", [False, True], ids=["byte by byte", "tokens"])
def test_text_ends_before_the_first_stop_string(tokenizer: Tokenizer, stop: tuple[str, ...], whole: bool) -> None:
    tokens = tokenizer.encode(TEXT) if whole else bytes_of(tokenizer, TEXT)
    pieces, stopped = stream(tokenizer, tokens, stop)
    ends = [at for each in stop if (at := TEXT.find(each)) >= 0]
    assert "".join(pieces) == TEXT[: min(ends, default=None)]
    assert stopped == bool(ends)
    assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_at_the_end_is_left_out(tokenizer: Tokenizer) -> None:
    assert "".join(stream(tokenizer, bytes_of(tokenizer, "fox 🐉")[:-1], ())[0]) == "fox "


def test_bytes_that_are_no_text_are_shown_as_such_and_hold_nothing_up(tokenizer: Tokenizer) -> None:
    (byte, *_) = _single(tokenizer, "🐉")
    text = TextStream(tokenizer, [])
    pieces = [text.push(token) for token in [byte] * 40 + bytes_of(tokenizer, "fox")]
    assert pieces[-1] == "x" and "".join(pieces).endswith("fox")
    assert len(text._window) < 20


@pytest.mark.parametrize(("top_p", "min_p"), [(0.9, 0.1), (1.0, 0.1), (1.0, 0.0)])
def test_draws_follow_the_distribution_of_transformers(top_p: float, min_p: float) -> None:
    random_state = np.random.default_rng(0)
    logits_v = random_state.normal(size=10).astype(np.float32) * 1.5
    tokens = [3, 3, 7]
    settings = Sampling(temperature=0.8, top_p=top_p, min_p=min_p, repetition_penalty=1.3)
    scores = torch.tensor(logits_v)[None].double()
    scores = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([tokens]), scores) / 0.8
    scores = MinPLogitsWarper(min_p)(None, TopPLogitsWarper(top_p)(None, scores))
    expected = torch.softmax(scores, -1)[0].numpy()
    count = 3000
    drawn = [draw(logits_v, Sampling(**{**settings.__dict__, "seed": seed}), tokens, 3) for seed in range(count)]
    counts = np.bincount(drawn, minlength=10)
    assert not counts[expected == 0].any() and 2 < (expected > 0).sum() < 10 + (min_p == 0)
    kept = expected > 0
    deviation = ((counts - count * expected)[kept] ** 2 / (count * expected[kept])).sum()
    assert deviation < 34  # beyond the 99.99 % quantile of chi-squared with up to 9 degrees of freedom


def test_log_probabilities_are_those_of_the_softmax() -> None:
    logits_v = np.random.default_rng(1).normal(size=20).astype(np.float32)
    expected = torch.log_softmax(torch.tensor(logits_v, dtype=torch.float64), -1)
    found, top = log_probabilities(logits_v, 4, 5)
    assert found == pytest.approx(float(expected[4]))
    values, indices = expected.topk(5)
    assert [token for token, _ in top] == indices.tolist()
    assert [value for _, value in top] == pytest.approx(values.tolist())

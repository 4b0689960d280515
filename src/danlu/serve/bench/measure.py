"""All conversations at their times, and the figures of what came back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import numpy as np

from danlu.errors import DanluError
from danlu.serve.bench.client import Answer, Client, Failed, Message
from danlu.serve.bench.workload import Conversation, Shape, conversations, system


def measure(client: Client, model: str, shape: Shape, seed: int) -> dict[str, Any]:
    """Put the load on the server. A conversation begins at its time, however slow the server is; one that fails ends.

    DanluError: not one request was answered.
    """
    answers: list[Answer] = []
    errors: Counter[str] = Counter()
    first = {"role": "system", "content": system(shape, seed)}

    def talk(conversation: Conversation) -> None:
        messages: list[Message] = [first]
        for turn, pause in zip(conversation.turns, [0.0, *conversation.pauses], strict=True):
            time.sleep(pause)
            messages = [*messages, {"role": "user", "content": turn.text}]
            try:
                answer = client.chat(model, messages, turn.max_tokens)
            except Failed as error:
                errors[str(error)] += 1
                return
            answers.append(answer)
            messages = [*messages, {"role": "assistant", "content": answer.text}]

    began = time.perf_counter()
    threads = []
    for conversation in conversations(shape, seed):
        time.sleep(max(0.0, began + conversation.start - time.perf_counter()))
        threads.append(threading.Thread(target=talk, args=(conversation,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if not answers:
        raise DanluError(f"no request was answered: {next(iter(errors), 'there was none')}")
    return _figures(answers, errors, seconds)


def _figures(answers: list[Answer], errors: Counter[str], seconds: float) -> dict[str, Any]:
    def total(field: str) -> int | None:
        """None where the server did not count for every request."""
        found = [answer.usage.get(field) for answer in answers]
        return sum(found) if all(isinstance(each, int) for each in found) else None  # type: ignore[arg-type]

    cached = [(answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens") for answer in answers]
    tokens = total("completion_tokens")
    return {
        "requests": len(answers),
        "errors": sum(errors.values()),
        "reasons": dict(errors.most_common()),
        "seconds": seconds,
        "requests_per_second": len(answers) / seconds,
        "tokens_per_second": None if tokens is None else tokens / seconds,
        "prompt_tokens": total("prompt_tokens"),
        "completion_tokens": tokens,
        "cached_tokens": sum(cached) if all(isinstance(each, int) for each in cached) else None,
        **_spread("first_token_seconds", [answer.first for answer in answers]),
        **_spread("between_pieces_seconds", [gap for answer in answers for gap in answer.gaps]),
        **_spread("whole_answer_seconds", [answer.whole for answer in answers]),
    }


def _spread(name: str, seconds: list[float]) -> dict[str, float | None]:
    return {f"{name}_p{share}": float(np.percentile(seconds, share)) if seconds else None for share in (50, 95)}

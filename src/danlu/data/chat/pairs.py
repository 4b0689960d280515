"""The forms in which preferences are published: what is asked, the better answer, and the other one."""

from __future__ import annotations

from typing import Any

from danlu.data.chat.forms import Told, Unfit, conversation

CHOSEN, REJECTED = "chosen", "rejected"


def pair(record: Any) -> list[Told]:
    """The conversation with the preferred answer, then that with the other.

    Answers are text or messages (fields chosen and rejected); what is asked is text or messages (prompt), or stands in front of
    both answers. Text behind text is bare, as a prompt with its completion is. Unfit: it is none of these.
    """
    if not isinstance(record, dict) or not {CHOSEN, REJECTED} <= record.keys():
        raise Unfit("no fields chosen and rejected")
    return [_answered(record.get("prompt"), record[CHOSEN], CHOSEN), _answered(record.get("prompt"), record[REJECTED], REJECTED)]


def _answered(prompt: Any, answer: Any, name: str) -> Told:
    if prompt is None and not isinstance(answer, list):
        raise Unfit("no field prompt")
    try:
        if isinstance(prompt, str) and isinstance(answer, str):
            return conversation({"prompt": prompt, "completion": answer})
        answers = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        if not isinstance(answers, list):
            raise Unfit("it is neither text nor messages")
        whole = answers and isinstance(answers[0], dict) and answers[0].get("role") != "assistant"
        asked = [] if prompt is None or whole else [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return conversation({"messages": [*asked, *answers]})
    except Unfit as error:
        raise Unfit(f"{name}: {error}") from None

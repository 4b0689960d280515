"""The forms in which conversations are published, each to one: what is asked, and what is answered."""

from __future__ import annotations

import itertools
from typing import Any

Message = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
_SHARE_GPT = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}


class Unfit(Exception):
    """A record is no conversation, or a template cannot render it; the text says why."""


Told = list[Message] | tuple[str, str]
"""Messages, or a bare prompt and its completion."""


def conversation(record: Any) -> Told:
    """Messages (chat, alpaca), or a bare prompt and its completion, which no template touches.

    Known by its fields: messages [{role, content}], conversations [{from, value}], instruction, input and output, prompt and
    completion. Unfit: it is none of these, an answer is missing or empty, or the roles stand in an order that makes no sense.
    """
    if not isinstance(record, dict):
        raise Unfit("no object with fields")
    if isinstance(told := record.get("messages"), list):
        return _ordered([_message(each) for each in told])
    if isinstance(told := record.get("conversations"), list):
        return _ordered([_shared(each) for each in told])
    if "instruction" in record and "output" in record:
        asked, more = _string(record, "instruction"), _string(record, "input") if record.get("input") else ""
        text = f"{asked}\n\n{more}" if more else asked
        return _ordered([{"role": "user", "content": text}, {"role": "assistant", "content": _string(record, "output")}])
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return _ordered([_message(each) for each in prompt + completion])
    if "prompt" in record and "completion" in record:
        made = _string(record, "prompt"), _string(record, "completion")
        if not made[1].strip():
            raise Unfit("an empty completion")
        return made
    raise Unfit("no field messages, conversations, instruction with output, or prompt with completion")


def _string(record: dict[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise Unfit(f"field {field!r} is no text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Unfit(f"field {field!r} holds half of a surrogate pair") from None
    return value


def _message(told: Any) -> Message:
    if not isinstance(told, dict):
        raise Unfit("a message that is no object")
    role = told.get("role")
    if role not in ROLES:
        raise Unfit(f"role {role!r} is none of {', '.join(ROLES)}")
    return told | {"content": _string(told, "content")}


def _shared(told: Any) -> Message:
    if not isinstance(told, dict) or (role := _SHARE_GPT.get(str(told.get("from")))) is None:
        raise Unfit(f"a message from none of {', '.join(_SHARE_GPT)}")
    return {"role": role, "content": _string(told, "value")}


def _ordered(messages: list[Message]) -> list[Message]:
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise Unfit("no answer of the assistant")
    if "system" in roles[1:]:
        raise Unfit("a system message that is not the first")
    if roles[0] == "assistant":
        raise Unfit("the assistant speaks first")
    for before, role in itertools.pairwise(roles):
        if role == before and role in ("user", "assistant"):
            raise Unfit(f"two messages of the {role} in a row")
    if any(message["role"] == "assistant" and not message["content"].strip() for message in messages):
        raise Unfit("an empty answer of the assistant")
    return messages

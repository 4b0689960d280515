"""The JSON of answers, in OpenAI's words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from danlu.serve.model import Model
from danlu.serve.sequence import Output
from danlu.serve.text import HALF


class Answer:
    """One request's answer: as a whole, or in chunks of a stream."""

    def __init__(self, model: Model, chat: bool, prompt_tokens: int) -> None:
        self.model, self.chat = model, chat
        self.prompt_tokens, self.cached, self.completion_tokens = prompt_tokens, 0, 0
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
        }

    def count(self, output: Output) -> None:
        """Tell of every output, for the usage."""
        self.completion_tokens += output.token is not None

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens of the request, over all choices."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def whole(self, choices: Sequence[Sequence[Output]]) -> dict[str, Any]:
        """Everything at once."""
        made = []
        for index, outputs in enumerate(choices):
            text = "".join(output.text for output in outputs)
            body: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            made.append({"index": index, **body, "logprobs": self._logprobs(outputs), "finish_reason": outputs[-1].reason})
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": made, "usage": self.usage}

    def first(self, index: int) -> dict[str, Any]:
        """What a stream of chat begins with."""
        return self._chunk([{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def chunk(self, index: int, output: Output) -> dict[str, Any]:
        """One output in a stream."""
        body: dict[str, Any] = {"delta": {"content": output.text} if output.text else {}} if self.chat else {"text": output.text}
        logprobs = self._logprobs([output])
        return self._chunk([{"index": index, **body, "logprobs": logprobs, "finish_reason": output.reason}])

    def last(self) -> dict[str, Any]:
        """The usage at the end of a stream."""
        return {**self._chunk([]), "usage": self.usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}

    def _logprobs(self, outputs: Sequence[Output]) -> dict[str, Any] | None:
        drawn = [output for output in outputs if output.logprob is not None and output.token is not None]
        if not drawn:
            return None
        if self.chat:
            return {"content": [self._token(it.token, it.logprob, it.top) for it in drawn]}
        return {
            "tokens": [self._text(it.token) for it in drawn],
            "token_logprobs": [it.logprob for it in drawn],
            "top_logprobs": [{self._text(token): logprob for token, logprob in it.top} for it in drawn],
            "text_offset": _offsets([self._text(it.token) for it in drawn]),
        }

    def _token(self, token: int | None, logprob: float | None, top: Sequence[tuple[int, float]] = ()) -> dict[str, Any]:
        text = self._text(token)
        found: dict[str, Any] = {"token": text, "logprob": logprob, "bytes": None if HALF in text else list(text.encode())}
        return found | {"top_logprobs": [{k: v for k, v in self._token(*it).items() if k != "top_logprobs"} for it in top]}

    def _text(self, token: int | None) -> str:
        return "" if token is None else self.model.tokenizer.decode([token])


def _offsets(texts: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, texts[:-1]), initial=0))


def error(message: str, status: int) -> dict[str, Any]:
    """The body of a refusal."""
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(status)
    return {"error": {"message": message, "type": kind or ("invalid_request_error" if status < 500 else "server_error"),
                      "param": None, "code": status}}  # fmt: skip

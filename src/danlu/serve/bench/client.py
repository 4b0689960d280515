"""One request after another to a server, timed as its answer streams in. Of the standard library, so that it weighs little."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from danlu.errors import UserError

Message = dict[str, str]


class Answer(NamedTuple):
    """What came of a request. Seconds are from when it was sent."""

    text: str
    first: float
    """Until the first piece."""
    whole: float
    gaps: list[float]
    """Between pieces."""
    usage: dict[str, Any]
    """As the server counts tokens; empty where it does not."""


class Failed(Exception):
    """A request that was not answered; says why in a few words."""


class Client:
    """Knows the server, not the requests: threads share it."""

    def __init__(self, address: str, api_key: str | None, timeout: float) -> None:
        """UserError: no address of HTTP. ``address`` may end with /v1 or not."""
        parts = urlsplit(address if "://" in address else f"http://{address}")
        try:
            known = parts.scheme in ("http", "https") and parts.hostname is not None and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known:
            raise UserError(f"{address}: not an address of HTTP, such as http://127.0.0.1:8000")
        self.address, self.timeout = address, timeout
        self._place, self._secure = parts.netloc.rpartition("@")[2], parts.scheme == "https"
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})

    def model(self) -> str:
        """The first model that the server has. UserError: there is no such server, or it has none."""
        try:
            connection = self._open()
            connection.request("GET", f"{self._path}/models", headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise UserError(f"{self.address}: {_reason(answer.status, body)}")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"{self.address}: {error}; is the server running?") from None
        except (ValueError, LookupError, TypeError):
            raise UserError(f"{self.address}: does not list models as OpenAI does; name one with --model") from None

    def chat(self, model: str, messages: list[Message], max_tokens: int) -> Answer:
        """Ask, greedily, and read the stream to its end. Failed: it is refused, breaks off or takes too long."""
        asked = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        body = json.dumps({**asked, "stream_options": {"include_usage": True}})
        began = time.perf_counter()
        texts: list[str] = []
        times: list[float] = []
        usage: dict[str, Any] = {}
        try:
            connection = self._open()
            connection.request("POST", f"{self._path}/chat/completions", body, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise Failed(_reason(answer.status, answer.read()))
            for event in _events(answer):
                if "error" in event:
                    raise Failed(str(event["error"])[:200])
                usage = event.get("usage") or usage
                if text := "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices", [])):
                    texts.append(text)
                    times.append(time.perf_counter() - began)
                if times and times[-1] > self.timeout:
                    raise Failed("it took too long")
        except TimeoutError:
            raise Failed("it took too long") from None
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the connection failed: {error or type(error).__name__}") from None
        except (ValueError, AttributeError, TypeError):
            raise Failed("the stream is not one of OpenAI's") from None
        whole = time.perf_counter() - began
        gaps = [after - before for before, after in pairwise(times)]
        return Answer("".join(texts), times[0] if times else whole, whole, gaps, usage)

    def _open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._place, timeout=self.timeout)


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events. Failed: it ends without its mark."""
    for line in answer:
        kind, _, value = line.decode("utf-8").strip().partition(":")
        if kind != "data":
            continue
        if value.strip() == "[DONE]":
            return
        yield json.loads(value)
    raise Failed("the answer broke off")


def _reason(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"{status}: {' '.join(str(message).split())}"[:200]

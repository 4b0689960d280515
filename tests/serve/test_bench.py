"""`danlu bench-serve` against danlu's own server, and against ones that misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from answering import Server, serving

from danlu.data.tokenizer import Tokenizer
from danlu.serve.bench.client import Answer
from danlu.serve.bench.measure import _figures
from danlu.serve.bench.workload import Shape, conversations, system
from danlu.serve.torch_executor import TorchExecutor

Call = Callable[..., tuple[int, str, str]]
SMALL = ["--conversations", 4, "--turns", 2, "--rate", 50, "--system-words", 8, "--words", 2, "--pause", 0]


def test_load_on_a_server(executor_of: Callable[..., TorchExecutor], tokenizer: Tokenizer, danlu: Call) -> None:
    server: Server
    with serving(executor_of(blocks=256, max_sequence_length=2048), tokenizer, api_key="key") as server:
        code, out, err = danlu("bench-serve", server.address, *SMALL, "--api-key", "key", "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        counts = server.engine.counts
        assert (found["requests"], found["errors"]) == (8, 0)
        assert found["completion_tokens"] == counts["generated_tokens"]
        assert (found["prompt_tokens"], found["cached_tokens"]) == (counts["prompt_tokens"], counts["cached_tokens"])
        assert found["cached_tokens"] > 0  # the shared prompt, and the turn before
        assert 0 < found["first_token_seconds_p50"] <= found["first_token_seconds_p95"] <= found["whole_answer_seconds_p95"]
        assert found["tokens_per_second"] == pytest.approx(found["completion_tokens"] / found["seconds"])
        code, out, err = danlu("bench-serve", f"{server.address}/v1/", *SMALL, "--api-key", "key")
        assert (code, err) == (0, "") and "first_token_seconds_p95" in out
        code, _, err = danlu("bench-serve", server.address, *SMALL, "--api-key", "wrong", "--model", "tiny")
        assert (code, err.count("\n")) == (1, 1) and "no request was answered: 401: the API key is missing or wrong" in err
        code, _, err = danlu("bench-serve", server.address, *SMALL, "--api-key", "key", "--model", "other")
        assert code == 1 and "404: model: there is no 'other' here" in err


def test_the_workload_is_that_of_its_numbers() -> None:
    shape = Shape(conversations=4000, turns=3, rate=2.0, system_words=400, words=30, pause=1.5)
    made = conversations(shape, 7)
    assert made == conversations(shape, 7) != conversations(shape, 8)
    assert len(system(shape, 7).split()) == 400
    gaps = np.diff([each.start for each in made])
    assert gaps.mean() == pytest.approx(0.5, rel=0.1) and gaps.std() == pytest.approx(0.5, rel=0.1)  # as exponential ones
    assert np.mean([len(turn.text.split()) for each in made for turn in each.turns]) == pytest.approx(31, rel=0.1)
    assert np.mean([pause for each in made for pause in each.pauses]) == pytest.approx(1.5, rel=0.1)
    assert {turn.max_tokens for each in made for turn in each.turns} == {16, 32, 64, 128}


def test_figures_of_a_server_that_does_not_count() -> None:
    from collections import Counter

    answers = [Answer("a", 1.0, 2.0, [0.5, 0.5], {"completion_tokens": 3}), Answer("b", 3.0, 4.0, [], {})]
    found = _figures(answers, Counter({"x": 2}), 4.0)
    assert (found["errors"], found["requests_per_second"], found["tokens_per_second"], found["cached_tokens"]) == (
        2,
        0.5,
        None,
        None,
    )
    assert (found["first_token_seconds_p50"], found["between_pieces_seconds_p95"]) == (2.0, 0.5)


MODELS = b'{"data": [{"id": "m"}]}'
PIECE = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'


@contextmanager
def answering(models: bytes, chat: bytes, status: int = 200) -> Iterator[str]:
    """A server that says just this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(status, chat)

        def reply(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("chat", "status", "message"),
    [
        (PIECE, 200, "the answer broke off"),
        (b"data: {\n\n", 200, "the stream is not one of OpenAI's"),
        (b"data: [1]\n\n", 200, "the stream is not one of OpenAI's"),
        (b"data: \xff\n\n", 200, "the stream is not one of OpenAI's"),
        (b'data: {"error": {"message": "full"}}\n\n', 200, "full"),
        (b'{"error": {"message": "too\\nmany"}}', 429, "429: too many"),
        (b"<html>", 502, "502: <html>"),
    ],
)
def test_answers_that_are_none(danlu: Call, chat: bytes, status: int, message: str) -> None:
    with answering(MODELS, chat, status) as address:
        code, out, err = danlu("bench-serve", address, *SMALL)
    assert (code, out, err.count("\n")) == (1, "", 1) and message in err


def test_some_errors_are_told_and_the_exit_code_says_so(danlu: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from danlu.serve.bench import client

    asked = iter(range(100))
    real = client.Client.chat

    def sometimes(self: client.Client, *arguments: object) -> Answer:
        if next(asked) == 0:
            raise client.Failed("no luck")
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client.Client, "chat", sometimes)
    with answering(MODELS, PIECE + b"data: [DONE]\n\n") as address:
        code, out, err = danlu("bench-serve", address, *SMALL, "--json")
    assert (code, err) == (4, "danlu: 1 x no luck\n")
    assert json.loads(out)["errors"] == 1 and json.loads(out)["requests"] == 6  # its second turn is not asked


def test_addresses_that_are_none(danlu: Call) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{free.getsockname()[1]}"
    for address, message in (
        ("ftp://127.0.0.1", "not an address of HTTP"),
        ("http://", "not an address of HTTP"),
        ("http://127.0.0.1:99999", "not an address of HTTP"),
        (closed, "is the server running?"),
    ):
        code, out, err = danlu("bench-serve", address)
        assert (code, out, err.count("\n")) == (2, "", 1) and message in err
    with answering(b"{}", b"") as address:
        assert "does not list models as OpenAI does; name one with --model" in danlu("bench-serve", address)[2]

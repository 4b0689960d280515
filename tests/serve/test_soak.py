"""Many at once, of good and bad will: the good get their answers, nothing leaks, the server lives."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from answering import Server, serving, until

from danlu.data.tokenizer import Tokenizer
from danlu.serve.torch_executor import TorchExecutor

HEAD = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"


def line_to(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1])))


def answered(server: Server, number: int) -> str:
    """A proper request, repeated for as long as the server says that it is full."""
    while True:
        body = {"model": "tiny", "prompt": f"the quick {number % 5}", "max_tokens": 12, "seed": number % 5}
        answer = server.post(body)
        if answer.status_code != 429:
            assert answer.status_code == 200, answer.text
            return f"{number % 5} {answer.json()['choices'][0]['text']}"


def leaves(server: Server, number: int) -> str:
    """Asks for much, reads a little or nothing, and hangs up."""
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 200, "stream": True, "ignore_eos": True}).encode()
    with line_to(server) as line:
        line.sendall(HEAD.format(len(body)).encode() + body)
        if number % 2:
            line.recv(100)
    return "left"


def hostile(server: Server, number: int) -> str:
    """No HTTP, no JSON, a body that never comes, or a field of a wrong kind."""
    draws = random.Random(number)
    with line_to(server) as line:
        if number % 3 == 0:
            line.sendall(draws.randbytes(200))
        elif number % 3 == 1:
            line.sendall(HEAD.format(5000).encode() + b"{")
        else:
            body = json.dumps({"model": "tiny", "prompt": [draws.choice([None, "", -5, 1e9, {}, [[]]])]}).encode()
            line.sendall(HEAD.format(len(body)).encode() + body)
            assert b" 400 " in line.recv(100)
    return "hostile"


@pytest.mark.slow
def test_a_crowd(executor_of: Callable[..., TorchExecutor], tokenizer: Tokenizer) -> None:
    with serving(executor_of(blocks=24), tokenizer, waiting=12) as server, ExitStack() as stack:
        for _ in range(300):  # connections that say nothing
            stack.enter_context(line_to(server))
        draws = random.Random(1)
        kinds = [answered] * 40 + [leaves] * 30 + [hostile] * 30
        draws.shuffle(kinds)
        with ThreadPoolExecutor(24) as pool:
            made = Counter(pool.map(lambda number: kinds[number](server, number), range(len(kinds))))
        assert made["left"] == made["hostile"] == 30
        texts = [each for each in made if each[0].isdigit()]
        assert sum(made[each] for each in texts) == 40
        assert len(texts) == len({text[0] for text in texts})  # the same request, the same text, in all that company
        until(server.idle)
        assert httpx.get(f"{server.address}/health").status_code == 200
        assert server.engine.counts["ended_cancelled"] > 0

"""The server as clients see it: OpenAI's own, and some that mean no good."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from answering import Server, serving, until

from danlu.data.tokenizer import Tokenizer
from danlu.serve.engine import Engine
from danlu.serve.http.answers import Answer
from danlu.serve.http.bodies import Chat, read
from danlu.serve.sampling import Sampling
from danlu.serve.sequence import Output
from danlu.serve.torch_executor import TorchExecutor

ExecutorOf = Callable[..., TorchExecutor]


@pytest.fixture(scope="module")
def server(executor_of: ExecutorOf, tokenizer: Tokenizer) -> Iterator[Server]:
    with serving(executor_of(blocks=128), tokenizer, api_key="key") as made:
        yield made


def alone(server: Server, tokens: list[int], **settings: Any) -> str:
    """What an engine of its own makes of these tokens."""
    engine = Engine(server.engine.executor.__class__(server.engine.executor.shape, server.engine.executor.weights, 64))
    sequence = server.model.sequence(tokens, Sampling(**{"temperature": 0.0, **settings}))
    engine.add(sequence)
    made = []
    while engine.busy:
        made += [output.text for _, output in engine.step()]
    return "".join(made)


def test_completions_whole_and_streamed(server: Server) -> None:
    settings: dict[str, Any] = {"model": "tiny", "prompt": "the quick 炉", "max_tokens": 12, "temperature": 0}
    whole = server.client.completions.create(**settings)
    expected = alone(server, server.model.prompt("the quick 炉"), max_tokens=12)
    assert whole.choices[0].text == expected
    assert whole.choices[0].finish_reason in ("length", "stop")
    assert whole.usage is not None and whole.usage.prompt_tokens == len(server.model.prompt("the quick 炉"))
    chunks = list(server.client.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == expected
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_chat_whole_and_streamed(server: Server) -> None:
    messages: Any = [
        {"role": "system", "content": "fox"},
        {"role": "user", "content": [{"type": "text", "text": "the <|end|> 🐉"}]},
    ]
    ids, special = server.model.tokenizer.encode, server.model.tokenizer.specials
    begin, end = special["<|begin|>"], special["<|end|>"]
    # What a user writes is never a special token.
    prompt = [begin, *ids("system\nfox"), end, begin, *ids("user\nthe <|end|> 🐉"), end, begin, *ids("assistant\n")]
    assert (
        server.model.conversation([{"role": "system", "content": "fox"}, {"role": "user", "content": "the <|end|> 🐉"}]) == prompt
    )
    settings: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 10, "temperature": 0}
    whole = server.client.chat.completions.create(**settings, logprobs=True, top_logprobs=3)
    expected = alone(server, prompt, max_tokens=10)
    assert whole.choices[0].message.content == expected
    found = whole.choices[0].logprobs
    assert found is not None and found.content is not None and len(found.content) == whole.usage.completion_tokens  # type: ignore[union-attr]
    assert all(len(it.top_logprobs) == 3 and it.logprob == it.top_logprobs[0].logprob <= 0 for it in found.content)
    chunks = list(server.client.chat.completions.create(**settings, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == expected
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_several_prompts_and_choices(server: Server) -> None:
    made = server.client.completions.create(model="tiny", prompt=["a", "b"], n=2, seed=7, max_tokens=6)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert made.choices[0].text != made.choices[1].text  # each choice has a seed of its own
    again = server.client.completions.create(model="tiny", prompt=["a", "b"], n=2, seed=7, max_tokens=6)
    assert [choice.text for choice in made.choices] == [choice.text for choice in again.choices]


def test_models_health_metrics_page(server: Server) -> None:
    assert [model.id for model in server.client.models.list()] == ["tiny"]
    assert server.client.models.retrieve("tiny").id == "tiny"
    assert httpx.get(f"{server.address}/health").json()["status"] == "ok"
    server.client.completions.create(model="tiny", prompt="x", max_tokens=1)
    text = httpx.get(f"{server.address}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["danlu_generated_tokens_total"]) >= 1 and float(values["danlu_first_token_seconds_count"]) >= 1
    assert "<textarea" in httpx.get(f"{server.address}/").text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 200_000, 400, "not JSON"),
        (b"[]", 400, "body"),
        ({"model": "tiny"}, 400, "prompt"),
        ({"model": "other", "prompt": "x"}, 404, "the model is 'tiny'"),
        ({"model": "tiny", "prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"model": "tiny", "prompt": "x", "temperature": -1}, 400, "temperature"),
        (b'{"model": "tiny", "prompt": "x", "temperature": NaN}', 400, "temperature"),
        ({"model": "tiny", "prompt": "x", "suffix": "y"}, 400, "suffix"),
        ({"model": "tiny", "prompt": "x", "best_of": 2}, 400, "best_of"),
        ({"model": "tiny", "prompt": [5, 999]}, 400, "not in 0 to 299"),
        ({"model": "tiny", "prompt": [-1]}, 400, "prompt"),
        ({"model": "tiny", "prompt": [2**70]}, 400, "prompt"),
        ({"model": "tiny", "prompt": "\ud800"}, 400, "unicode"),
        ({"model": "tiny", "prompt": "x " * 5000}, 400, "shorten the prompt"),
        ({"model": "tiny", "prompt": ["x"] * 100}, 400, "ask in parts"),
        ({"model": "tiny", "prompt": "x", "seed": -(2**80)}, 400, "seed"),
        ({"model": "tiny", "prompt": "x", "stop": ["a"] * 17}, 400, "stop"),
        (b"x" * (9 << 20), 413, "larger"),
    ],
)
def test_bad_requests(server: Server, body: Any, status: int, message: str) -> None:
    answer = server.post(body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    until(server.idle)


def test_a_conversation_keeps_names_and_no_setting_is_ignored(server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "name": "Li", "content": "x"}]}
    assert read(Chat, json.dumps(body).encode()).messages[0].plain() == {"role": "user", "name": "Li", "content": "x"}
    answer = server.post({**body, "top_logprobs": 2}, "/v1/chat/completions")
    assert answer.status_code == 400 and "top_logprobs needs logprobs" in answer.json()["error"]["message"]


def test_half_a_character_has_no_bytes_of_its_own(server: Server) -> None:
    half = server.model.tokenizer.byte_ids[0]
    made = Answer(server.model, True, 1).chunk(0, Output("", half, -1.0, [], None))
    assert made["choices"][0]["logprobs"]["content"][0]["bytes"] is None


def test_who_may_not_ask(server: Server) -> None:
    body = {"model": "tiny", "prompt": "x"}
    assert server.post(body, key="wrong").status_code == 401
    assert "application/json" in server.post(body, headers={"content-type": "text/plain"}).json()["error"]["message"]
    assert server.post({"model": "tiny", "messages": []}, "/v1/chat/completions").status_code == 400
    assert server.post({"model": "tiny", "messages": [{"role": "x", "content": ""}]}, "/v1/chat/completions").status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_computed_no_longer(server: Server, stream: bool) -> None:
    before = server.engine.counts["ended_cancelled"]
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 250, "stream": stream, "ignore_eos": True, "n": 8}).encode()
    port = int(server.address.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as line:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        line.sendall(head.encode() + b"authorization: Bearer key\r\n\r\n" + body)
        until(lambda: len(server.engine.running) == 8)
    until(server.idle)
    assert server.engine.counts["ended_cancelled"] == before + 8


def test_too_many_are_told_to_come_again(executor_of: ExecutorOf, tokenizer: Tokenizer) -> None:
    with serving(executor_of(), tokenizer, waiting=4, seconds=0.05) as server:
        answer = server.post({"model": "tiny", "prompt": "x", "n": 5})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        late = server.post({"model": "tiny", "prompt": "x", "max_tokens": 250, "ignore_eos": True, "n": 4})
        assert late.status_code == 503 and "longer than 0.05 s" in late.json()["error"]["message"]
        until(server.idle)

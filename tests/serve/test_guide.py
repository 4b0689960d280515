"""Answers that follow a JSON schema, held against another library's judgement of schema and answer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
from answering import Server, serving, until

from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.serve.engine import Engine
from danlu.serve.guide import LONGEST, Guides
from danlu.serve.sampling import Sampling
from danlu.serve.sequence import Output, Sequence
from danlu.serve.text import TextStream
from danlu.serve.torch_executor import TorchExecutor

ExecutorOf = Callable[..., TorchExecutor]
SMALL = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


def schema(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random schema whose answers are short."""
    leaves: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"type": "integer", "minimum": (low := draw.randint(-50, 50)), "maximum": low + draw.randint(0, 1000)},
        lambda: {"type": "string", "maxLength": draw.randint(0, 8)},
        lambda: {"type": "string", "pattern": draw.choice(["^[a-f]{2,4}$", "^\\d{3}-\\d{2}$", "^(炉|火){1,3}$"])},
        lambda: {"enum": draw.sample(["炉火", 'a "b"', 3, None, True, "\n", 1.5], 3)},
        lambda: {"const": draw.choice(["🐉", 7, False])},
    ]
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(leaves)()
    kind = draw.choice(["object", "array", "anyOf"])
    if kind == "array":
        low = draw.randint(0, 2)
        return {"type": "array", "items": schema(draw, depth - 1), "minItems": low, "maxItems": low + draw.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [schema(draw, depth - 1) for _ in range(2)]}
    names = draw.sample(["name", "年龄", "a b", "x", 'q"'], draw.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: schema(draw, depth - 1) for name in names},
        "required": names[: draw.randint(0, len(names))],
        "additionalProperties": False,
    }


def run(engine: Engine, sequences: list[Sequence]) -> list[list[Output]]:
    made: dict[Sequence, list[Output]] = {sequence: [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while engine.busy:
        for sequence, output in engine.step():
            made[sequence].append(output)
    return list(made.values())


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def sequence(tokenizer: Tokenizer, guides: Guides, asked: Any, **settings: Any) -> Sequence:
    tokens = tokenizer.encode("the quick")
    stream = TextStream(tokenizer, tokens)
    sampling = Sampling(**{"max_tokens": 900, **settings})
    guide = None if asked is None else guides.make(asked)
    return Sequence(list(tokens), len(tokens), sampling, frozenset({tokenizer.end_id}), stream, guide)


@pytest.fixture(scope="module")
def guides(tokenizer: Tokenizer) -> Guides:
    return Guides(tokenizer, 300, frozenset({tokenizer.end_id}))


def test_random_schemas_are_followed_at_any_temperature(executor_of: ExecutorOf, tokenizer: Tokenizer, guides: Guides) -> None:
    draw = random.Random(0)
    asked = [schema(draw) for _ in range(50)]
    assert len({json.dumps(each) for each in asked}) > 45
    # Few blocks for so many, so that some have to wait in the middle of an answer and are computed anew.
    engine = Engine(executor_of(blocks=24, max_sequence_length=1024))
    settings = [{"seed": number, "temperature": (0, 1, 3)[number % 3]} for number in range(50)]
    made = run(engine, [sequence(tokenizer, guides, each, **how) for each, how in zip(asked, settings, strict=True)])
    assert engine.counts["preemptions"] > 0
    for each, outputs in zip(asked, made, strict=True):
        assert outputs[-1].reason == "stop", text(outputs)
        jsonschema.validate(json.loads(text(outputs)), each)


def test_a_guide_does_not_depend_on_the_batch(executor_of: ExecutorOf, tokenizer: Tokenizer, guides: Guides) -> None:
    def some() -> list[Sequence]:
        draw = random.Random(3)
        kinds = [schema(draw), None, schema(draw), None]
        return [sequence(tokenizer, guides, each, seed=at, max_tokens=60) for at, each in enumerate(kinds)]

    together = [text(each) for each in run(Engine(executor_of(max_sequence_length=1024)), some())]
    alone = [text(run(Engine(executor_of(max_sequence_length=1024)), [each])[0]) for each in some()]
    assert together == alone


def test_what_is_right_anyway_is_not_changed(executor_of: ExecutorOf, tokenizer: Tokenizer, guides: Guides) -> None:
    """Where the schema leaves just one answer, it is that one; guesses ahead are held against the schema too."""
    only = {"const": ["the quick brown fox the quick brown fox the quick brown fox"]}
    outputs = run(Engine(executor_of(max_sequence_length=1024)), [sequence(tokenizer, guides, only, temperature=0)])[0]
    assert json.loads(text(outputs)) == only["const"]
    masked = guides.make(only).masked(np.zeros(300, np.float32))
    allowed = [tokenizer.decode([int(token)]) for token in np.flatnonzero(np.isfinite(masked))]
    assert allowed and all('["the quick'.startswith(each) for each in allowed)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"type": "nothing"}, "nothing"),
        ({"type": "object", "patternProperties": {"(": {}}}, "response_format: "),
        ({"type": "string", "pattern": "(?<=a)b"}, "response_format: "),
        ({"$ref": "http://example.org/schema"}, "response_format: "),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "response_format: "),
        ({"enum": ["x" * LONGEST]}, "more than 65,536 characters"),
    ],
)
def test_schemas_that_cannot_be_followed(guides: Guides, asked: Any, message: str) -> None:
    with pytest.raises(UserError, match="response_format") as refused:
        guides.make(asked)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_without_the_library_or_with_another_tokenizer(
    guides: Guides, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Guides(tokenizer, 300, frozenset({tokenizer.end_id}))
    monkeypatch.setattr(tokenizer, "_data", b'{"model": {}}')
    with pytest.raises(UserError, match="response_format: not with the tokenizer of this model"):
        other.make(SMALL)
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(UserError, match="with its extra `guided`"):
        guides.make(SMALL)


# --- over HTTP -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(executor_of: ExecutorOf, tokenizer: Tokenizer) -> Iterator[Server]:
    with serving(executor_of(blocks=256, max_sequence_length=2048), tokenizer) as made:
        yield made


def test_clients_get_what_they_ask_for(server: Server) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": SMALL, "strict": True}}
    chat: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the"}], "response_format": form}
    made = server.client.chat.completions.create(**chat, n=3, seed=1)
    for choice in made.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SMALL)
    pieces = server.client.chat.completions.create(**chat, stream=True)
    jsonschema.validate(json.loads("".join(piece.choices[0].delta.content or "" for piece in pieces)), SMALL)
    plain = server.client.completions.create(
        model="tiny", prompt=["a", "b"], max_tokens=300, temperature=0, extra_body={"response_format": form}
    )
    assert all(json.loads(choice.text).keys() == {"ok"} for choice in plain.choices)
    some = server.client.chat.completions.create(**{**chat, "response_format": {"type": "json_object"}}, max_tokens=40, seed=3)
    assert (some.choices[0].message.content or "").startswith("{")
    free = {**chat, "response_format": {"type": "text"}, "temperature": 0, "max_tokens": 8}
    without = {name: value for name, value in free.items() if name != "response_format"}
    texts = [server.client.chat.completions.create(**each).choices[0].message.content for each in (free, without)]
    assert texts[0] == texts[1]
    until(server.idle)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "json_schema goes with the type json_schema"),
        ({"type": "json_object", "json_schema": {"schema": {}}}, "json_schema goes with the type json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": True}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}, "response_format: "),
    ],
)
def test_forms_that_are_refused(server: Server, form: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        server.client.completions.create(model="tiny", prompt="x", extra_body={"response_format": form})
    with pytest.raises(openai.BadRequestError, match="ignore_eos"):
        server.client.completions.create(
            model="tiny", prompt="x", extra_body={"response_format": {"type": "json_object"}, "ignore_eos": True}
        )


def test_a_schema_that_becomes_too_costly_ends_its_answer_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from danlu.serve import guide

    def dead(*_: object) -> None:
        raise guide.Dead

    with monkeypatch.context() as patch:
        patch.setattr(guide.Guide, "masked", dead)
        with pytest.raises(openai.InternalServerError, match="could not finish"):
            server.client.completions.create(model="tiny", prompt="x", extra_body={"response_format": {"type": "json_object"}})
        assert server.client.completions.create(model="tiny", prompt="x", max_tokens=4).choices[0].text
    until(server.idle)

"""Conversations: which tokens are supervised, what is refused, and that packing changes no loss."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from danlu.data import tokenizer as tokenizers
from danlu.data.batches import IGNORED, TrainingBatches, evaluation_batches
from danlu.data.chat import template as templates
from danlu.data.chat.show import shown
from danlu.data.prepare import prepare
from danlu.data.prepared import Prepared
from danlu.engines import create
from danlu.errors import UserError
from danlu.recipe import Recipe, resolve_shape

TEMPLATE = (
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% if m.role == 'assistant' %}{{ eos_token + '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def chat(*turns: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]}


GOOD = [
    chat("Is lead gold?", "No, lead is not gold."),
    chat("炼丹?", "炉火纯青。", "And then?", "One waits, and adds salt 🐉."),
    {"instruction": "Name a metal.", "input": "A light one.", "output": "Aluminium."},
    {"prompt": "2 + 2 =", "completion": " 4"},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello there"}]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a template."""
    made = tmp_path_factory.mktemp("tokenizer")
    data = tokenizers.train([json.dumps(each, ensure_ascii=False) for each in GOOD] * 5, 400)
    tokenizers.save(made, data, None, tokenizers.END, {"pad_token": tokenizers.PAD, "chat_template": TEMPLATE})
    return made


def recipe(folder: Path, records: list[Any], place: Path, **data: Any) -> Recipe:
    source = place / "chats.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    told = {
        "name": "sft",
        "model": {"layers": 2, "hidden_size": 16, "ffn_size": 32, "heads": 2},
        "data": {
            "sources": [{"path": str(source)}],
            "tokenizer": {"path": str(folder)},
            "sequence_length": 64,
            "validation_fraction": 0.0,
            **data,
        },
        "train": {"objective": "sft", "global_batch": 1, "device": "cpu"},
    }
    return Recipe.model_validate(told)


def made(settings: Recipe, place: Path) -> tuple[Prepared, list[str]]:
    lines: list[str] = []
    return prepare(settings, place / "data", lines.append), lines


def test_only_answers_and_what_ends_them_are_supervised(folder: Path, tmp_path: Path) -> None:
    prepared, _ = made(recipe(folder, GOOD, tmp_path), tmp_path)
    texts = shown(prepared, 9)
    assert texts[0].startswith("[user]Is lead gold?[assistant]⟦No, lead is not gold.<|end|>⟧\n\n(")
    assert (
        "[user]炼丹?[assistant]⟦炉火纯青。<|end|>⟧\n[user]And then?[assistant]⟦One waits, and adds salt 🐉.<|end|>⟧" in texts[1]
    )
    assert texts[2].startswith("[user]Name a metal.\n\nA light one.[assistant]⟦Aluminium.<|end|>⟧")
    assert texts[3].startswith("2 + 2 =⟦ 4<|end|>⟧\n(")
    assert "[assistant]⟦Hello there<|end|>⟧" in texts[4]


def test_all_tokens_on_request(folder: Path, tmp_path: Path) -> None:
    prepared, _ = made(recipe(folder, GOOD[:1], tmp_path, chat={"supervise": "all"}), tmp_path)
    assert prepared.train.supervised(0, prepared.train.tokens).all()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (chat("a", ""), "an empty answer"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "speaks first"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "no answer"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}, "role 'robot'"),
        (chat("a", "b", "c\ud800", "d"), "surrogate"),
        ({"messages": [{**turn, "name": "\ud800"} for turn in chat("a", "b")["messages"]]}, "surrogate"),
        (chat("a", "b\ufdd0"), "no character"),
        ({"instruction": "a", "input": "\ud800", "output": "b"}, "surrogate"),
        ({"instruction": "a", "input": 5, "output": "b"}, "'input' is no text"),
        (chat("very long " * 60, "b"), "no token of an answer is among the first 65"),
        ({"text": "a"}, "no field messages"),
        ([1], "no object"),
        ({"prompt": "a", "completion": " "}, "empty completion"),
    ],
)
def test_what_is_no_conversation_is_counted_and_skipped(folder: Path, tmp_path: Path, record: Any, said: str) -> None:
    prepared, lines = made(recipe(folder, [*GOOD, record], tmp_path, bad_line_limit=0.5), tmp_path)
    assert prepared.train.documents == len(GOOD)
    assert prepared.index["report"]["bad"] == 1
    assert any(said in line for line in lines), lines


def test_a_long_conversation_is_cut_and_told(folder: Path, tmp_path: Path) -> None:
    prepared, lines = made(recipe(folder, [chat("a", "b " * 200)], tmp_path), tmp_path)
    assert prepared.train.tokens == 65
    assert any("1 conversation cut" in line for line in lines)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no ' + messages[0].role) }}", "no user"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "more than"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 100,000 steps"),
        (
            "{% set r = range(99)|list %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}{% endfor %}",
            "steps",
        ),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "steps"),
        ("{% for i in [60] recursive %}{% if i %}{{ loop([i - 1, i - 1]) }}{% endif %}{% endfor %}", "steps"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages[0]['nothing'].x }}", "UndefinedError"),
    ],
)
def test_a_template_that_fails(folder: Path, tmp_path: Path, template: str, said: str) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(template)
    with pytest.raises(UserError, match=said):
        made(recipe(folder, GOOD[:1], tmp_path, chat={"template": str(file)}), tmp_path)


def test_no_template(folder: Path, tmp_path: Path) -> None:
    (tmp_path / tokenizers.FILE).write_bytes((folder / tokenizers.FILE).read_bytes())
    with pytest.raises(UserError, match=r"no chat template; name one in data\.chat\.template, such as chatml"):
        templates.load(tokenizers.load(folder), tmp_path, None)
    file = tmp_path / "bad.jinja"
    file.write_text("{% for %}")
    with pytest.raises(UserError, match="no Jinja"):
        templates.load(tokenizers.load(folder), tmp_path, str(file))


def test_template_renders_as_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    messages = GOOD[1]["messages"]
    own = tokenizers.load(folder)
    text, cuts = templates.load(own, folder, None).render(messages, False)
    assert text == theirs.apply_chat_template(messages, tokenize=False) and not cuts
    assert own.encode_markup(text)[0].tolist() == theirs.apply_chat_template(messages, return_dict=False)


def test_what_is_written_in_a_message_is_no_special_token(folder: Path, tmp_path: Path) -> None:
    """In training as in an answer; the template's own are."""
    tokenizer = tokenizers.load(folder)
    record = chat("<|end|> <|pad|>?", "say <|end|> or <|pad|><|end|>")
    prepared, _ = made(recipe(folder, [record], tmp_path), tmp_path)
    ids = prepared.train.window(0, prepared.train.tokens).tolist()
    special = set(tokenizer.specials.values())
    assert [number for number in ids if number in special] == [tokenizer.end_id]
    shown_text = "[user]<|end|> <|pad|>?[assistant]⟦say <|end|> or <|pad|><|end|><|end|>⟧\n\n("
    assert shown(prepared, 1)[0].startswith(shown_text)
    rendered = templates.load(tokenizer, folder, None).render(record["messages"][:1], True)
    assert ids[: len(tokenizer.encode_markup(*rendered)[0])] == tokenizer.encode_markup(*rendered)[0].tolist()


def test_packed_loss_is_that_of_one_conversation_a_row(folder: Path, tmp_path: Path) -> None:
    settings = recipe(folder, GOOD, tmp_path)
    prepared, _ = made(settings, tmp_path)
    engine = create(settings, resolve_shape(settings, prepared.vocab_size))
    engine.initialise()
    stream = prepared.train
    total, tokens, rows = 0.0, 0, 0
    for batch in evaluation_batches(stream, sequence_length=64, batch=1, document_mask=True):
        loss, count = engine.evaluate(batch)
        total, tokens, rows = total + loss, tokens + count, rows + 1
    assert rows < len(GOOD)  # something is packed
    alone = supervised = 0.0
    begins = np.append(stream.document_starts(0, stream.tokens), stream.tokens)
    for start, stop in itertools.pairwise(begins):
        ids = torch.tensor(stream.window(start, stop - start).astype(np.int64))[None]
        keep = torch.tensor(stream.supervised(start, stop - start)[1:])
        logits = engine.model(ids[:, :-1]).detach()  # type: ignore[attr-defined]
        losses = torch.nn.functional.cross_entropy(logits[0].double(), ids[0, 1:], reduction="none")
        alone, supervised = alone + float(losses[keep].sum()), supervised + int(keep.sum())
    assert tokens == supervised
    assert total / tokens == pytest.approx(alone / supervised, abs=1e-5)


def test_every_conversation_is_in_an_epoch_once(folder: Path, tmp_path: Path) -> None:
    prepared, _ = made(recipe(folder, GOOD * 4, tmp_path), tmp_path)
    batches = TrainingBatches(prepared.train, sequence_length=64, global_batch=1, micro_batch=1, document_mask=True, seed=1)
    found = sum(int((batches[step]["targets"] != IGNORED).sum()) for step in range(batches.samples))
    assert found == int(prepared.train.supervised(0, prepared.train.tokens).sum())


def test_recipe_contradictions(folder: Path, tmp_path: Path) -> None:
    text = "name: x\nmodel: {preset: llama-10m}\ndata: {sources: [{path: a}]}\ntrain: {objective: sft}\n"
    file = tmp_path / "r.yaml"
    file.write_text(text)
    from danlu.recipe import load

    with pytest.raises(UserError, match=r"give data\.tokenizer\.path"):
        load(file)

"""Likelihoods of given texts beside transformers', and EleutherAI's harness, where it is installed, on a task that lies here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from danlu.cli import cli
from danlu.data import tokenizer as tokenizers
from danlu.serve.score import Scorer
from danlu.serving import open_model

TASK = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: options
metric_list: [{{metric: acc}}]
"""
QUESTIONS = [
    {"question": f"{n} and {n} is", "options": [f" {2 * n}", " nothing at all", " 一"], "answer": n % 3} for n in range(6)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("scored") / "model"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=96, initializer_range=0.3, **sizes)).save_pretrained(
        made
    )
    data = tokenizers.train([json.dumps(QUESTIONS, ensure_ascii=False)] * 3, 290)
    tokenizers.save(made, data, None, tokenizers.END, {"pad_token": tokenizers.PAD})
    return made


def scorer(folder: Path) -> Scorer:
    from danlu.serve.load import load

    opened = open_model(folder, print)
    return Scorer(load(opened.shape, opened.weights, "plain", 96, "cpu"))


def test_likelihoods_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs, ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), scorer(folder)
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 300, (150,), generator=random).tolist()
    for first, middle, end in ((0, 5, 9), (0, 5, 12), (0, 3, 90), (40, 41, 43), (0, 70, 75), (0, 120, 150), (3, 54, 150)):
        context, continuation = tokens[first:middle], tokens[middle:end]
        if end == 75:  # what greedy decoding would say
            with torch.no_grad():
                made = theirs.generate(torch.tensor([context]), max_new_tokens=5, min_new_tokens=5, do_sample=False)
            continuation = made[0, len(context) :].tolist()
        given = torch.tensor([[*context, *continuation][-97:]])
        with torch.no_grad():
            told = theirs(given[:, :-1]).logits.double().log_softmax(-1)[0, -len(continuation) :]
        total, greedy = ours.score(context, continuation)
        assert total == pytest.approx(told.gather(1, given[0, -len(continuation) :, None]).sum().item(), rel=1e-5)
        assert greedy == (end == 75)


def test_a_task_of_the_harness(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    data, task = tmp_path / "choices.jsonl", tmp_path / "choices.yaml"
    data.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS), encoding="utf-8")
    task.write_text(TASK.format(data=data), encoding="utf-8")
    ours, encode = scorer(folder), tokenizers.load(folder).encode
    right = 0
    for each in QUESTIONS:
        told = [ours.score(encode(each["question"]), encode(option))[0] for option in each["options"]]  # type: ignore[arg-type]
        right += told.index(max(told)) == each["answer"]
    for place in (task, tmp_path):
        done = CliRunner().invoke(cli, ["evaluate", str(folder), "--tasks", str(place), "--json"], catch_exceptions=False)
        found = json.loads(done.stdout[done.stdout.index("{") :])["choices"]
        assert (found["samples"], found["acc"]) == (6, pytest.approx(right / 6))

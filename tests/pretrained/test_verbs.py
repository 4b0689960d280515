"""From conversations to an adapter, a talk and files for other programs, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from danlu.cli import cli
from danlu.data import tokenizer as tokenizers
from danlu.errors import UserError

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on four conversations."""
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("verbs")
    base, chats = place / "base", place / "chats.jsonl"
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, tie_word_embeddings=True
    )
    LlamaForCausalLM(config).save_pretrained(base)
    turns = [[{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": f"{n} 是"}] for n in range(4)]
    chats.write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns), encoding="utf-8")
    data = tokenizers.train([chats.read_text()] * 3, 310)
    tokenizers.save(base, data, None, tokenizers.END, {"pad_token": tokenizers.PAD, "chat_template": TEMPLATE})
    recipe = place / "recipe.yaml"
    told = {
        "name": "sft",
        "stages": ["prepare", "train"],
        "model": {"hugging_face": str(base)},
        "data": {
            "sources": [{"path": str(chats)}],
            "tokenizer": {"path": str(base)},
            "sequence_length": 48,
            "validation_fraction": 0,
            "workers": 0,
        },
        "train": {"objective": "sft", "steps": 2, "global_batch": 2, "device": "cpu", "lora": {"rank": 2}},
    }
    recipe.write_text(json.dumps(told))
    done = CliRunner().invoke(cli, ["run", str(recipe), "--runs", str(place / "runs")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return place / "runs" / "sft"


def test_samples_are_shown(run: Path) -> None:
    shown = CliRunner().invoke(cli, ["prepare", str(run), "--show", "1"], catch_exceptions=False).output
    assert "user: Say 0\nassistant: ⟦0 是<|end|>⟧\n" in shown


def test_chat(run: Path) -> None:
    arguments = ["chat", str(run), "--temperature", "0", "--max-tokens", "5", "--system", "Be short."]
    first = CliRunner().invoke(cli, arguments, input="Say 1\n/new\nSay 1\n", catch_exceptions=False)
    assert first.exit_code == 0
    told = CliRunner().invoke(cli, arguments, input="x" * 4000 + "\n", catch_exceptions=False)
    assert told.exit_code == 0 and "the model's context holds 2048" in told.stderr and "/new begins anew" in told.stderr


def test_export(run: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader

    def export(form: str, to: str, *more: str) -> None:
        arguments = ["export", str(run), "--format", form, "--to", str(tmp_path / to), *more]
        assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0

    export("peft", "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2
    (tmp_path / "adapter" / "mine").write_text("x")
    export("peft", "adapter", "--replace")
    assert not (tmp_path / "adapter" / "mine").exists()
    with pytest.raises(UserError, match="is no export"):
        export("peft", ".", "--replace")
    export("gguf-q8_0", "model.gguf")
    assert {each.tensor_type.name for each in GGUFReader(tmp_path / "model.gguf").tensors} == {"Q8_0", "F32"}
    imported = CliRunner().invoke(cli, ["import", str(tmp_path / "model.gguf"), "--to", str(tmp_path / "back")])
    assert imported.exit_code == 0 and "llama" in imported.output
    with pytest.raises(UserError, match="exists"):
        CliRunner().invoke(
            cli, ["export", str(run), "--format", "gguf-f16", "--to", str(tmp_path / "model.gguf")], catch_exceptions=False
        )
    with pytest.raises(UserError, match="types of its own"):
        CliRunner().invoke(
            cli, ["export", str(run), "--format", "peft", "--to", str(tmp_path / "a"), "--dtype", "bf16"], catch_exceptions=False
        )

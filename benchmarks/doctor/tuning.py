"""What runs that tune a model need: weights, conversations, and a text that is not to be forgotten. Each is made once."""

from __future__ import annotations

import json
from pathlib import Path

from danlu import export, stages
from danlu.data import tokenizer as tokenizers
from danlu.data.prepared import Prepared
from danlu.demo.corpus import write
from danlu.engines.torch.engine import TorchEngine
from danlu.recipe import Recipe

SEED = 100
"""Of the pre-training; no run of the benchmark has it."""
WORDS = 24
"""Of a conversation, at most."""
KEPT = 40
"""Documents that are not to be forgotten."""
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def conversations(folder: Path, documents: int, grammar: int) -> Path:
    """Of each document the first words are asked, and answered with the others."""
    path = folder / f"talk-{documents}-{grammar}.jsonl"
    if not path.exists():
        text = write(folder / f"talk-{documents}-{grammar}.text", documents, grammar)
        with path.open("w", encoding="utf-8") as file:
            for line in text.read_text(encoding="utf-8").splitlines():
                words = json.loads(line)["text"].split()[:WORDS]
                turns = (("user", words[:3]), ("assistant", words[3:]))
                file.write(json.dumps({"messages": [{"role": role, "content": " ".join(said)} for role, said in turns]}) + "\n")
    return path


def kept(folder: Path) -> Path:
    """Text of the pre-training's grammar."""
    path = folder / "kept.jsonl"
    return path if path.exists() else write(path, KEPT, seed=1)


def exported(folder: Path, recipe: Recipe, engine: TorchEngine, prepared: Prepared) -> Path:
    """The trained weights with their tokenizer and chat template, in the Hugging Face layout."""
    target = folder / "weights"
    trained = stages.Trained(
        engine, engine.shape, tokenizers.load(prepared.tokenizer_path), prepared, recipe, recipe.train.steps, ""
    )
    export.export(trained, target, "fp32", replace=True)
    file = target / tokenizers.SETTINGS
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(settings | {"chat_template": TEMPLATE}), encoding="utf-8")
    return target

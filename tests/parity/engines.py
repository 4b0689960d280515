"""Both engines on several recipes, 50 steps each, with a change of engine halfway, both ways.

    python tests/parity/engines.py [--json FILE] [--plot FILE.svg] [--only NAME ...]

Prints a table and exits with 1 where one differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from danlu import recipe as recipes
from danlu.compare.engines import compare, lines
from danlu.data.prepare import prepare

STEPS = 50
WORDS = "炉火 纯青 the quick brown fox def return self import of and to a in that it is was données été 模型 训练".split()  # noqa: SIM905
MODEL = {"layers": 2, "hidden_size": 48, "ffn_size": 96, "heads": 6, "kv_heads": 2, "max_sequence_length": 128}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "llama": ({}, []),
    "llama, tied, accumulated, documents apart": (
        {"tied_embeddings": True},
        ["memory.micro_batch=2", "data.document_mask=true"],
    ),
    "mistral, window, recomputed": ({"family": "mistral", "sliding_window": 9}, ["memory.recompute=full"]),
    "qwen2, dropout": ({"family": "qwen2", "qkv_bias": True}, ["train.dropout=0.1"]),
    "qwen3, compiled": ({"family": "qwen3", "qk_norm": True, "head_size": 16}, ["train.compile=true"]),
}


def tree(corpus: Path, model: dict[str, Any]) -> dict[str, Any]:
    """A recipe that clips its gradients, warms up and decays within the steps."""
    return {
        "name": "engines",
        "model": MODEL | model,
        "data": {
            "sources": [{"path": str(corpus)}],
            "tokenizer": {"train": {"vocab_size": 400}},
            "sequence_length": 32,
            "validation_fraction": 0.1,
            "workers": 0,
        },
        "train": {
            "device": "cpu",
            "steps": STEPS,
            "global_batch": 8,
            "optimizer": {"learning_rate": 5e-3, "gradient_clipping": 1.0},
        },
    }


def write_corpus(path: Path) -> Path:
    drawn = random.Random(0)
    records = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(5, 60)))} for _ in range(400)]
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), "utf-8")
    return path


def run(name: str, folder: Path) -> dict[str, Any]:
    model, overrides = CASES[name]
    recipe = recipes.parse(tree(write_corpus(folder / "corpus.jsonl"), model), overrides)
    (folder / "recipe.yaml").write_text(recipes.dump(recipe), "utf-8")
    prepare(recipe, folder / "data", lambda _: None)
    return compare(folder / "recipe.yaml", folder / "data", STEPS, lambda line: print(f"  {line}", flush=True))


def plot(losses: dict[str, dict[str, list[float]]]) -> str:
    """The curves as SVG, one frame a recipe: the ways lie on each other where the engines are equal."""
    colours = ("#444444", "#d9480f", "#1971c2", "#2f9e44")
    wide, high, gap = 300, 190, 30
    parts = []
    for place, (name, ways) in enumerate(losses.items()):
        x0, y0 = gap + place % 3 * (wide + gap), gap + place // 3 * (high + 2 * gap)
        top, bottom = (pick(max(way) if pick is max else min(way) for way in ways.values()) for pick in (max, min))
        parts.append(f'<text x="{x0}" y="{y0 - 6}" font-weight="bold">{name}</text>')
        parts.append(f'<rect x="{x0}" y="{y0}" width="{wide}" height="{high}" fill="none" stroke="#cccccc"/>')
        for number, (way, curve) in enumerate(ways.items()):
            points = " ".join(
                f"{x0 + step * wide / (len(curve) - 1):.1f},{y0 + (top - loss) / (top - bottom) * high:.1f}"
                for step, loss in enumerate(curve)
            )
            # Each way a little thinner than the one below it, so that all of them are seen.
            stroke = f'stroke="{colours[number]}" stroke-width="{8 - 2 * number}" fill="none"'
            parts.append(f'<polyline points="{points}" {stroke}/>')
            parts.append(f'<text x="{x0 + 130}" y="{y0 + 20 + 16 * number}" fill="{colours[number]}">{way}</text>')
        parts.append(f'<text x="{x0}" y="{y0 + high + 16}">loss {top:.2f} to {bottom:.2f} nats, {STEPS} steps</text>')
    width, height = gap + 3 * (wide + gap), gap + -(-len(losses) // 3) * (high + 2 * gap)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    answers = {}
    for name in arguments.only:
        print(name, flush=True)
        with tempfile.TemporaryDirectory(prefix="danlu-") as folder:
            answers[name] = run(name, Path(folder))
        print("\n".join(f"  {line}" for line in lines(answers[name])), flush=True)
    figures = {
        "recipes": len(answers),
        "steps": STEPS,
        "worst_loss_gap": max(answer["worst_loss_gap"] for answer in answers.values()),
        "worst_norm_gap": max(answer["worst_norm_gap"] for answer in answers.values()),
        "worst_weight_gap": max(answer["worst_weight_gap"] for answer in answers.values()),
    }
    print(json.dumps(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        arguments.plot.write_text(plot({name: answer["losses"] for name, answer in answers.items()}), "utf-8")
    return 0 if all(answer["equal"] for answer in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A dimension that fits none of the others, such as one that was left over from another size."""

from __future__ import annotations

from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.finding import Finding, Severity, Text
from danlu.model.presets import PRESETS
from danlu.model.shape import ModelShape

WIDER = 1.6
"""Factor by which the ranges are wider than what published models use."""
NARROWEST = 256
"""Hidden size below which a model is a toy whose heads may have any size."""
UNUSED = 2.0
"""Rows of the embedding a token of the tokenizer."""


def ratios(shape: ModelShape) -> dict[str, float]:
    """What is alike in models of all sizes."""
    return {
        "ffn_size / hidden_size": shape.ffn_size / shape.hidden_size,
        "hidden_size / layers": shape.hidden_size / shape.layers,
        "head size": float(shape.head_dim),
        "heads / kv_heads": shape.heads / shape.key_value_heads,
    }


def usual() -> dict[str, tuple[float, float]]:
    """The range of each ratio over the presets, widened."""
    rows = [ratios(shape) for shape in PRESETS.values()]
    return {name: (min(row[name] for row in rows) / WIDER, max(row[name] for row in rows) * WIDER) for name in rows[0]}


def check(material: Material) -> Finding | None:
    shape = material.need_shape()
    why = []
    for name, (low, high) in usual().items():
        value = ratios(shape)[name]
        if low <= value <= high or (name != "ffn_size / hidden_size" and shape.hidden_size < NARROWEST):
            continue
        why.append(
            Text(
                f"{name} is {value:.3g}; models from 5 million to 405 billion parameters have {low * WIDER:.3g} to "
                f"{high / WIDER:.3g}",
                f"{name} 为 {value:.3g}；五百万到四千亿参数的模型在 {low * WIDER:.3g} 到 {high / WIDER:.3g} 之间",
            )
        )
    tokens = material.prepared.vocab_size if material.prepared is not None else None
    if tokens and shape.vocab_size > UNUSED * tokens and material.recipe.model.hugging_face is None:
        why.append(
            Text(
                f"the embedding has {shape.vocab_size:,} rows and the tokenizer {tokens:,} tokens",
                f"词嵌入有 {shape.vocab_size:,} 行，而分词器只有 {tokens:,} 个 token",
            )
        )
    if not why:
        return None
    return Finding(
        "model_shape",
        Severity.WARNING,
        0.7,
        Text("a dimension of the model does not go with the others", "模型的某个维度与其他维度不相称"),
        tuple(why),
        Text("compare with a preset of this size: danlu model list", "与相近规模的预设比较：danlu model list"),
        {},
        (Text("meant so, as in a study of shapes", "有意为之，例如研究模型形状"),),
    )


AUDIT = Audit(
    "model_shape",
    Text("a dimension that is left over from another model", "残留自另一个模型的维度"),
    "the shape",
    f"{WIDER:g} times beyond the range of the presets: MLP to hidden size, hidden size to layers, head size, heads to key/value "
    f"heads (but for the first only from hidden size {NARROWEST} on); {UNUSED:g} rows of the embedding a token",
    "config.json of published models, as in `danlu model list`",
    Severity.WARNING,
    check,
    at_start=True,
)

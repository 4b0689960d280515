"""Sections of the recipe: objectives that hold a model against a second one, which stays as it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from danlu.recipe.section import Section

Samples = Literal["text", "conversations", "pairs"]


class DistillSection(Section):
    """The model learns the probabilities of a teacher, which runs beside it (train.objective: distill)."""

    teacher: str = Field(description="Folder in the Hugging Face layout, with the tokens of data.tokenizer.")
    divergence: Literal["forward_kl", "reverse_kl", "jensen_shannon"] = Field(
        "forward_kl", description="From the teacher's probabilities: KL(teacher, model), KL(model, teacher), or between both."
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Both models' logits are divided by it for the divergence.")
    cross_entropy: float = Field(
        0.5, ge=0, le=1, description="Share of the plain cross-entropy in the loss; the rest is temperature^2 x divergence."
    )
    on_policy: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the samples of which only the first half is given; the model draws the second half itself, and the "
        "teacher judges that.",
    )
    cache: str | None = Field(
        None,
        description="Folder for the teacher's likeliest tokens at every place of the data: it is asked for them once, before "
        "training, which then needs no teacher; null: it runs beside the model.",
    )
    top_k: int = Field(64, ge=1, le=65_535, description="Tokens of a place that the cache keeps; all others are kept as one.")
    samples: Literal["text", "conversations"] = Field(
        "text", description="What data.sources hold: plain text, as in pre-training, or conversations, as in sft."
    )


class DpoSection(Section):
    """Answers that were preferred become likelier than those that were not (train.objective: dpo)."""

    beta: float = Field(
        0.1,
        gt=0,
        description="What log-probability ratios are multiplied by; a small one lets the model move far.",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Share of the pairs that are taken to be the wrong way round.")

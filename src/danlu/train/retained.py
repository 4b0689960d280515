"""What a model that is tuned must not forget: its loss on a text of its own, which it is not trained on."""

from __future__ import annotations

from pathlib import Path

from danlu.data import tokenizer as tokenizers
from danlu.data.batches import evaluation_batches
from danlu.data.prepared import Prepared
from danlu.data.text_file import text_stream
from danlu.engines.base import Batch, Engine
from danlu.errors import UserError
from danlu.recipe import Recipe


class Retained:
    """The text of ``doctor.retain``; without one, or without a doctor, nothing is measured. All processes call."""

    def __init__(self, recipe: Recipe, engine: Engine, prepared: Prepared) -> None:
        """UserError: the file cannot be read, or holds no text."""
        self.engine = engine
        self.batches: list[Batch] = []
        if recipe.doctor.retain is None or not recipe.doctor.every:
            return
        try:
            with text_stream(Path(recipe.doctor.retain).expanduser(), tokenizers.load(prepared.tokenizer_path)) as stream:
                self.batches = list(
                    evaluation_batches(
                        stream,
                        sequence_length=recipe.data.sequence_length,
                        batch=recipe.train.global_batch,
                        document_mask=recipe.data.document_mask,
                        max_tokens=recipe.train.evaluate_tokens,
                    )
                )
        except UserError as error:
            raise UserError(f"doctor.retain: {error}") from None

    def measure(self) -> dict[str, float]:
        """``retained/loss``, nats a token."""
        sums = [self.engine.evaluate(batch) for batch in self.batches]
        supervised = sum(tokens for _, tokens in sums)
        return {"retained/loss": sum(nats for nats, _ in sums) / supervised} if supervised else {}

"""A conversation with what a run has trained."""

from __future__ import annotations

from collections.abc import Iterator

from danlu.data.chat import template as templates
from danlu.data.chat.forms import Message, Unfit
from danlu.data.chat.template import Template
from danlu.engines.base import Sampling
from danlu.errors import UserError
from danlu.recipe.watch_sections import GenerateSection
from danlu.stages import Trained
from danlu.train.continuation import text_pieces


class Conversation:
    """Keeps the turns. UserError: the run's tokenizer has no chat template."""

    def __init__(self, trained: Trained, settings: GenerateSection) -> None:
        self.trained, self.settings = trained, settings
        self.template: Template = templates.load(trained.tokenizer, trained.prepared.folder, None)
        self.messages: list[Message] = []

    def system(self, text: str) -> None:
        """What the template puts before all turns."""
        self.messages.append({"role": "system", "content": text})

    def ask(self, text: str) -> Iterator[str]:
        """The answer, piece by piece; it is kept, as far as it was taken.

        UserError: the template cannot render the turns, or these fill the model's context; the question is forgotten then.
        """
        asked: list[Message] = [*self.messages, {"role": "user", "content": text}]
        try:
            prompt = self.template.render(asked, answer_next=True)
        except Unfit as fault:
            raise UserError(str(fault)) from None
        tokenizer, settings = self.trained.tokenizer, self.settings
        ids = tokenizer.encode_markup(*prompt)[0].tolist()
        seed = (settings.seed + len(self.messages)) % 2**63
        top_k = min(settings.top_k, self.trained.shape.vocab_size)
        sampling = Sampling(settings.max_tokens, settings.temperature, top_k, settings.top_p, seed)
        new = self.trained.engine.generate(ids, sampling, tokenizer.end_id)
        return self._kept(asked, text_pieces(tokenizer, ids, new))

    def _kept(self, asked: list[Message], pieces: Iterator[str]) -> Iterator[str]:
        answer = ""
        try:
            for piece in pieces:
                answer += piece
                yield piece
        finally:
            if answer:
                self.messages = [*asked, {"role": "assistant", "content": answer}]

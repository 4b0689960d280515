"""Prompts continued by a model, while it trains and afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from danlu.data import tokenizer as tokenizers
from danlu.data.prepared import Prepared
from danlu.data.tokenizer import Tokenizer
from danlu.engines.base import Engine, Sampling
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.recipe.watch_sections import GenerateSection

CONTEXT = 8
"""Tokens before a new one that are decoded with it: enough to hold a whole character, and the blank that some tokenizers take
off the beginning of a text."""


def continuation(
    engine: Engine, tokenizer: Tokenizer, shape: ModelShape, prompt: str, settings: GenerateSection, number: int = 0
) -> Iterator[str]:
    """The continuation of a prompt, piece by piece; no piece ends inside a character.

    ``number`` tells apart the prompts of one call, so that each is drawn with a seed of its own.
    UserError, before the first piece: the prompt is no text, or too long.
    """
    ids = prompt_ids(tokenizer, prompt)
    begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    # Without a token that begins a document, the one that ends the document before stands in for it, as GPT-2 has it.
    start = begin + ids or [tokenizer.end_id]
    top_k = min(settings.top_k, shape.vocab_size)
    seed = (settings.seed + number) % 2**63
    sampling = Sampling(settings.max_tokens, settings.temperature, top_k, settings.top_p, seed)
    return text_pieces(tokenizer, ids, engine.generate(start, sampling, tokenizer.end_id))


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt. UserError: it is no text."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"the prompt is not UTF-8 (at character {error.start}); give it as UTF-8") from None
    return tokenizer.encode(prompt)


def text_pieces(tokenizer: Tokenizer, before: list[int], new: Iterable[int]) -> Iterator[str]:
    """The text that new tokens add behind those before, as soon as its last character is whole."""
    window = before[-CONTEXT:]
    shown = tokenizer.decode(window, skip_special_tokens=True)
    text = shown
    for token in new:
        window.append(token)
        text = tokenizer.decode(window, skip_special_tokens=True)
        if text.endswith("\ufffd"):  # half a character: the rest comes with the next token
            continue
        if len(text) > len(shown):
            yield text[len(shown) :]
        window = window[-CONTEXT:]
        shown = text = tokenizer.decode(window, skip_special_tokens=True)
    if len(text) > len(shown):
        yield text[len(shown) :]


class Prompts:
    """The recipe's prompts, which a run continues every so many steps. Every process of a layout calls the same methods."""

    def __init__(self, recipe: Recipe, shape: ModelShape, prepared: Prepared) -> None:
        """UserError: a prompt is no text, or fills the model's context."""
        self.settings, self.shape = recipe.generate, shape
        self.tokenizer = tokenizers.load(prepared.folder) if self.settings.every else None
        for number, prompt in enumerate(self.settings.prompts if self.tokenizer else []):
            assert self.tokenizer is not None
            length, room = len(prompt_ids(self.tokenizer, prompt)) + 1, shape.max_sequence_length
            if length >= room:
                raise UserError(f"generate.prompts[{number}]: has {length} tokens; the model's context holds {room}; shorten it")

    def due(self, step: int) -> bool:
        """Whether they are continued after this step."""
        return self.settings.every > 0 and step % self.settings.every == 0

    def continued(self, engine: Engine) -> list[tuple[str, str]]:
        """(prompt, continuation) of each."""
        assert self.tokenizer is not None, "due is asked first"
        return [
            (prompt, "".join(continuation(engine, self.tokenizer, self.shape, prompt, self.settings, number)))
            for number, prompt in enumerate(self.settings.prompts)
        ]

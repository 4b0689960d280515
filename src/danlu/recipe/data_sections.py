"""Sections of the recipe: from raw text to batches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from danlu.recipe.curate_sections import CurateSection
from danlu.recipe.section import RESUMABLE, Section


class Source(Section):
    """One place that text comes from."""

    path: str = Field(
        description="File, folder or glob (`**`: any depth); `{stdlib}` is Python's standard library (without "
        "site-packages), `~` the home folder."
    )
    exclude: list[str] = Field(
        [],
        description="Globs that are left out: without a slash a name at any depth, with one the path below the source's folder; "
        "a folder goes with all that is in it.",
    )
    text: str = Field("text", description="Field that holds the text in JSON and Parquet; dots reach into nested objects.")
    code: bool | None = Field(
        None,
        description="Its texts are program code, which curation neither judges as prose nor changes where it counts; null: `.py` "
        "files are.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Passes over this source in one epoch; 0.5 keeps half of its documents, 2.0 has each twice.",
    )


class TrainTokenizer(Section):
    """A byte-level BPE tokenizer trained on the run's own training documents."""

    vocab_size: int = Field(8192, ge=300, le=1_000_000, description="Tokens, special tokens included.")
    sample_bytes: int = Field(100_000_000, gt=0, description="Bytes of text that it is trained on, at most.")


class TokenizerSection(Section):
    """Train a tokenizer, or load one; exactly one of the two."""

    train: TrainTokenizer | None = Field(None, description="Train a byte-level BPE; null when path is given.")
    path: str | None = Field(None, description="A tokenizer.json, or a folder that holds one.")
    begin: str | None = Field(None, description="Token put before a document; null: what the tokenizer's own settings say.")
    end: str | None = Field(None, description="Token put after a document; null: what the tokenizer's own settings say.")

    @model_validator(mode="after")
    def _one_way(self) -> TokenizerSection:
        if self.train is not None and self.path is not None:
            raise ValueError("train and path are both given; keep one, and leave the other out or set it to null")
        if self.path is None and (self.begin is not None or self.end is not None):
            raise ValueError(
                "begin and end belong to a loaded tokenizer, and a trained one has its own; give path, or leave them out"
            )
        return self

    @property
    def training(self) -> TrainTokenizer | None:
        """The training settings in force: the given ones, or the defaults when nothing is loaded."""
        return self.train or (None if self.path else TrainTokenizer())


class ChatSection(Section):
    """How conversations become samples, where train.objective is sft."""

    template: str | None = Field(
        None, description="A file of Jinja, or `chatml`; null: the chat template that the tokenizer's folder has."
    )
    supervise: Literal["assistant", "all"] = Field(
        "assistant", description="What is learned: the assistant's answers with what ends a turn, or every token."
    )


class DataSection(Section):
    """From raw text to batches."""

    sources: list[Source] = Field(min_length=1, description="Where the text comes from.")
    tokenizer: TokenizerSection = Field(TokenizerSection(), description="Train one, or load one.")
    curate: CurateSection | None = Field(None, description="Stages that choose documents; null: all that can be read are taken.")
    executor: Literal["local", "ray"] = Field(
        "local",
        description="Where curation runs: in processes of this machine, or as tasks of a Ray cluster; the result is the same.",
        json_schema_extra=RESUMABLE,
    )
    chat: ChatSection = Field(ChatSection(), description="Of conversations (train.objective: sft).")
    memory: str = Field(
        "4GiB",
        pattern=r"^[1-9][0-9]* ?(MiB|GiB)$",
        description="What sorting in curation may take.",
        json_schema_extra=RESUMABLE,
    )
    sequence_length: int = Field(512, ge=2, description="Tokens a sample.")
    validation_fraction: float = Field(
        0.01, ge=0, lt=1, description="Share of documents, chosen by a hash of their text, that is held out."
    )
    document_mask: bool = Field(True, description="Attention stays inside a document, and positions restart with it.")
    bad_line_limit: float = Field(0.01, ge=0, le=1, description="Share of unreadable lines or files above which the job stops.")
    shard_tokens: int = Field(1 << 27, gt=0, description="Tokens after which a new shard file is begun.")
    workers: int = Field(
        1, ge=0, le=64, description="Loader processes; 0 loads in the training process.", json_schema_extra=RESUMABLE
    )

"""The typed recipe: one class a section, every field with its unit and default.

A field marked ``RESUMABLE`` may differ when a run is resumed, since it does not change what is trained.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from danlu.model.mup import Mup
from danlu.model.shape import Architecture

RESUMABLE: dict[str, Any] = {"resumable": True}

AUTOMATIC = ("parallel", "memory")
"""Sections that the planner can fill in; the word auto stands for such a section."""

Stage = Literal["prepare", "train", "evaluate", "generate", "export"]
Offload = Literal["none", "host", "disk"]


class Section(BaseModel):
    """What all sections share: unknown keys are errors, values are not silently converted, and numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Architecture):
    """What is trained: a preset, a checkpoint's shape, or every dimension spelled out; fields beside a preset override it."""

    preset: str | None = Field(None, description="A named shape; `danlu model list` prints them.")
    hugging_face: str | None = Field(
        None, description="Folder in the Hugging Face layout; its config.json gives the shape and its safetensors the weights."
    )
    vocab_size: int | None = Field(None, gt=0, description="Rows of the embedding; null: the tokenizer's size.")
    layers: int | None = Field(None, gt=0, description="Decoder blocks.")
    hidden_size: int | None = Field(None, gt=0, description="Width of the residual stream.")
    ffn_size: int | None = Field(None, gt=0, description="Width of one MLP matrix.")
    heads: int | None = Field(None, gt=0, description="Query heads.")
    mup: Mup | None = Field(
        None,
        description="Maximal update parametrisation, by which the best learning rate is the same at every width; null: off.",
    )


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


class DedupSection(Section):
    """Near-duplicates: MinHash LSH over words or, where words are not spaced, characters; the best copy of each group stays."""

    threshold: float = Field(0.8, ge=0.3, le=0.99, description="Jaccard similarity from which two documents count as copies.")
    permutations: int = Field(112, ge=16, le=1024, description="Hash functions; more of them judge pairs more sharply.")
    rows: int | None = Field(
        None,
        ge=1,
        description="Hashes in a band, a divisor of permutations; null: as many as still find a pair at the threshold.",
    )
    shingle: int = Field(5, ge=1, le=32, description="Words, or characters of unspaced scripts, in a shingle.")
    verify: Literal["estimate", "exact"] = Field(
        "estimate", description="How a candidate pair is checked: by all its hashes, or by its true Jaccard."
    )

    @model_validator(mode="after")
    def _whole_bands(self) -> DedupSection:
        if self.rows is not None and self.permutations % self.rows:
            raise ValueError(f"rows {self.rows} does not divide permutations {self.permutations}; choose a divisor")
        return self


class CurateSection(Section):
    """What is done to documents between reading and tokenising."""

    dedup: DedupSection | None = Field(None, description="Leave out near-duplicates; null: keep them.")
    workers: int = Field(
        0, ge=0, le=256, description="Processes; 0: one a core, if there is enough to do.", json_schema_extra=RESUMABLE
    )


class DataSection(Section):
    """From raw text to batches."""

    sources: list[Source] = Field(min_length=1, description="Where the text comes from.")
    tokenizer: TokenizerSection = Field(TokenizerSection(), description="Train one, or load one.")
    curate: CurateSection | None = Field(None, description="Stages that choose documents; null: all that can be read are taken.")
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


class OptimizerSection(Section):
    """AdamW with decoupled weight decay; biases, norms and other 1-D parameters are not decayed."""

    name: Literal["adamw"] = Field("adamw", description="The optimizer.")
    learning_rate: float = Field(3e-4, gt=0, description="Peak, after the warm-up.")
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.95], min_length=2, max_length=2, description="Decay rates of the two moments."
    )
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(0.1, ge=0, description="Decoupled decay of matrices and embeddings.")
    gradient_clipping: float = Field(1.0, ge=0, description="Largest global gradient norm; 0 leaves it as it is.")


class ScheduleSection(Section):
    """The learning rate over the steps: linear warm-up, then a decay."""

    name: Literal["cosine", "linear", "constant"] = Field("cosine", description="Shape of the decay after the warm-up.")
    warmup_steps: int | None = Field(None, ge=0, description="Steps of linear warm-up; null: warmup_fraction decides.")
    warmup_fraction: float | None = Field(
        None, ge=0, le=1, description="Share of the steps; null: 0.06 when warmup_steps is null too."
    )
    final_ratio: float = Field(0.1, ge=0, le=1, description="Last learning rate as a share of the peak.")

    @model_validator(mode="after")
    def _one_warmup(self) -> ScheduleSection:
        if self.warmup_steps is not None and self.warmup_fraction is not None:
            raise ValueError(
                "warmup_steps and warmup_fraction are both given; keep one, and leave the other out or set it to null"
            )
        return self


class TrainSection(Section):
    """How the model is trained."""

    engine: Literal["torch", "paddle"] = Field("torch", description="The framework.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU when there is one.")
    steps: int = Field(1000, gt=0, description="Optimizer steps.")
    global_batch: int = Field(32, gt=0, description="Samples an optimizer step, over all micro-batches and ranks.")
    optimizer: OptimizerSection = Field(OptimizerSection(), description="The update rule.")
    schedule: ScheduleSection = Field(ScheduleSection(), description="The learning rate over the steps.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Arithmetic of matrix products; weights and optimizer stay FP32. fp16 scales the loss dynamically."
    )
    dropout: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="Share of the entries that training zeroes in the embedding and in what attention and MLP add to it.",
    )
    compile: bool = Field(False, description="Compile the model's graph before the first step.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the initial weights and the order of the data.")
    evaluate_every: int = Field(
        0, ge=0, description="Steps between validations; 0: at the end only.", json_schema_extra=RESUMABLE
    )
    evaluate_tokens: int = Field(
        262_144, gt=0, description="Validation tokens a validation during training, at most.", json_schema_extra=RESUMABLE
    )
    non_finite_limit: int = Field(
        3, gt=0, description="Non-finite steps in a row (each is skipped) that stop the run.", json_schema_extra=RESUMABLE
    )


class ParallelSection(Section):
    """How the work is spread over processes; data x tensor x pipeline of them are started. `auto` alone: danlu plans it."""

    auto: bool = Field(
        False,
        description="When training begins, plan what is not given here for the devices of the machine; `parallel: auto` is short "
        "for it.",
        json_schema_extra=RESUMABLE,
    )
    data: int = Field(1, gt=0, description="Ranks that share a global batch.", json_schema_extra=RESUMABLE)
    tensor: int = Field(
        1, gt=0, description="Ranks that split every layer's heads and MLP, and the vocabulary.", json_schema_extra=RESUMABLE
    )
    pipeline: int = Field(1, gt=0, description="Ranks that each have some consecutive layers.", json_schema_extra=RESUMABLE)
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0,
        description="What data ranks split instead of keeping it whole: 1 optimizer states, 2 and gradients, 3 and parameters.",
        json_schema_extra=RESUMABLE,
    )
    schedule: Literal["1f1b", "interleaved", "zero-bubble"] = Field(
        "1f1b",
        description="Order of the pipeline's micro-batches; interleaved and zero-bubble have two stages a rank.",
        json_schema_extra=RESUMABLE,
    )
    sequence_parallel: bool = Field(
        False,
        description="Tensor ranks also split norms and the residual stream along the sequence.",
        json_schema_extra=RESUMABLE,
    )

    @property
    def stages_a_rank(self) -> int:
        """Pipeline stages that each pipeline rank has."""
        return 1 if self.schedule == "1f1b" else 2

    @property
    def processes(self) -> int:
        """Processes of the layout."""
        return self.data * self.tensor * self.pipeline


class MemorySection(Section):
    """What is traded for memory. `auto` alone: danlu plans it."""

    auto: bool = Field(
        False,
        description="When training begins, choose what is not given here such that it fits and is fast; `memory: auto` is short "
        "for it.",
        json_schema_extra=RESUMABLE,
    )
    micro_batch: int | None = Field(
        None,
        gt=0,
        description="Samples in one forward pass; null: global_batch / parallel.data. Smaller ones are accumulated.",
        json_schema_extra=RESUMABLE,
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="What is made anew in the backward pass: all of a layer, or all but matrix products and attention.",
        json_schema_extra=RESUMABLE,
    )
    recompute_every: int = Field(1, gt=0, description="Recompute in every n-th layer only.", json_schema_extra=RESUMABLE)
    offload_optimizer: Offload = Field(
        "none",
        description="Where the optimizer's moments are kept: host memory beside a GPU, or files, streamed by layer.",
        json_schema_extra=RESUMABLE,
    )
    offload_parameters: Offload = Field(
        "none",
        description="Where ZeRO 3 keeps its shards of the parameters between uses.",
        json_schema_extra=RESUMABLE,
    )
    offload_folder: str | None = Field(
        None,
        description="Folder on a fast local disk for what is offloaded to disk; null: the run's own.",
        json_schema_extra=RESUMABLE,
    )


class GenerateSection(Section):
    """The samples that are printed after training."""

    prompts: list[str] = Field(["", "The "], min_length=1, description="Texts to continue.", json_schema_extra=RESUMABLE)
    max_tokens: int = Field(64, gt=0, description="New tokens a sample.", json_schema_extra=RESUMABLE)
    temperature: float = Field(0.8, ge=0, description="0 always takes the most likely token.", json_schema_extra=RESUMABLE)
    top_k: int = Field(0, ge=0, description="Only the k most likely tokens; 0: all.", json_schema_extra=RESUMABLE)
    top_p: float = Field(
        0.95, gt=0, le=1, description="Only the most likely tokens of this total probability.", json_schema_extra=RESUMABLE
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the sampling.", json_schema_extra=RESUMABLE)


class WatchSection(Section):
    """What a person sees."""

    print_every: int = Field(
        10, gt=0, description="Steps between printed lines where stdout is no terminal.", json_schema_extra=RESUMABLE
    )
    hang_seconds: float = Field(
        300.0,
        ge=5,
        description="Time without any progress on any rank after which a run of several processes is ended; ten times as "
        "much for what happens for the first time since its start.",
        json_schema_extra=RESUMABLE,
    )
    replica_check_every: int = Field(
        100,
        ge=0,
        description="Steps between checks that replicated parameters are the same bits on all ranks; 0: at the start and "
        "before checkpoints only.",
        json_schema_extra=RESUMABLE,
    )
    memory: bool = Field(
        False,
        description="Meter one step operator by operator: peak bytes of parameters, gradients, optimizer, activations, the rest.",
        json_schema_extra=RESUMABLE,
    )


class CheckpointSection(Section):
    """When the run is saved."""

    every: int = Field(
        100, gt=0, description="Steps between checkpoints; the last step is always saved.", json_schema_extra=RESUMABLE
    )
    keep: int = Field(3, gt=0, description="Newest checkpoints that are kept.", json_schema_extra=RESUMABLE)
    asynchronous: bool = Field(
        False,
        description="Copy the state to host memory and write it while training goes on; needs memory for the copy.",
        json_schema_extra=RESUMABLE,
    )


class Recipe(Section):
    """One file that describes a run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Folder of the run below the runs folder: ASCII letters, digits, `.`, `_`, `-`, and no `.lock` or "
        "`.partial` at the end.",
    )
    stages: list[Stage] = Field(
        ["prepare", "train", "evaluate", "generate"],
        min_length=1,
        description="What `danlu run` does, in order.",
        json_schema_extra=RESUMABLE,
    )
    model: ModelSection = Field(description="What is trained.")
    data: DataSection = Field(description="From raw text to batches.")
    train: TrainSection = Field(TrainSection(), description="How it is trained.")
    parallel: ParallelSection = Field(ParallelSection(), description="How the work is spread over devices.")
    memory: MemorySection = Field(MemorySection(), description="What is traded for memory.")
    generate: GenerateSection = Field(GenerateSection(), description="Samples after training.")
    watch: WatchSection = Field(WatchSection(), description="What a person sees.")
    checkpoint: CheckpointSection = Field(CheckpointSection(), description="When the run is saved.")

    @field_validator("name")
    @classmethod
    def _no_name_of_a_lock(cls, name: str) -> str:
        for ending in (".lock", ".partial"):
            if name.lower().endswith(ending):
                raise ValueError(
                    f"{name} ends in {ending}, as the files do by which runs are guarded; give another, such as {name}-1"
                )
        return name

    @property
    def automatic(self) -> bool:
        """Whether the planner still has to fill in a section."""
        return self.parallel.auto or self.memory.auto

    @property
    def alone(self) -> Recipe:
        """The same recipe for one process, which evaluates, generates and exports."""
        return self.model_copy(update={"parallel": ParallelSection()})

    @property
    def micro_batch(self) -> int:
        """Samples in one forward pass on one rank."""
        return self.memory.micro_batch or self.train.global_batch // self.parallel.data

    @property
    def accumulation(self) -> int:
        """Micro-batches a step on one rank."""
        return self.train.global_batch // (self.micro_batch * self.parallel.data)

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up, resolved; 6 % of the steps by default, inside the usual 5-10 %."""
        schedule = self.train.schedule
        if schedule.warmup_steps is not None:
            return schedule.warmup_steps
        fraction = 0.06 if schedule.warmup_fraction is None else schedule.warmup_fraction
        return round(fraction * self.train.steps)

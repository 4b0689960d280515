"""Sections of the recipe: how the model is trained, in which layout, in how much memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from danlu.recipe.objective_sections import DistillSection, DpoSection, Samples
from danlu.recipe.section import RESUMABLE, Section

Offload = Literal["none", "host", "disk"]


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


class LoraSection(Section):
    """Low-rank adapters are trained beside the weights of model.hugging_face, which stay as they are."""

    rank: int = Field(16, ge=1, description="Width of each adapter.")
    alpha: float = Field(32.0, gt=0, description="What an adapter adds is multiplied by alpha / rank.")
    targets: list[str] = Field(
        ["*_proj"],
        min_length=1,
        description="Matrices that get one: patterns for a name such as `model.layers.0.self_attn.q_proj`, or for its last part.",
    )
    base: Literal["fp32", "int8"] = Field(
        "fp32", description="How the layers' frozen matrices are kept: int8 rounds each, with a scale for each row (QLoRA)."
    )
    dropout: float = Field(0.0, ge=0, le=0.9, description="Share of the entries that training zeroes in an adapter's input.")
    dora: bool = Field(
        False, description="Also train the length of every row of an adapted matrix, which then keeps only its direction (DoRA)."
    )


class TrainSection(Section):
    """How the model is trained."""

    engine: Literal["torch", "paddle"] = Field(
        "torch", description="The framework; a run can change it on the way.", json_schema_extra=RESUMABLE
    )
    objective: Literal["pretrain", "sft", "distill", "dpo"] = Field(
        "pretrain",
        description="pretrain: continue any text; sft: answer in conversations, of which only the answers are supervised; "
        "distill: be like a teacher; dpo: prefer the better one of two answers.",
    )
    distill: DistillSection | None = Field(None, description="The teacher (train.objective: distill).")
    dpo: DpoSection = Field(DpoSection(), description="How pairs of answers are learned (train.objective: dpo).")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU when there is one.")
    steps: int = Field(1000, gt=0, description="Optimizer steps.")
    global_batch: int = Field(32, gt=0, description="Samples an optimizer step, over all micro-batches and ranks.")
    optimizer: OptimizerSection = Field(OptimizerSection(), description="The update rule.")
    lora: LoraSection | None = Field(None, description="Adapters instead of all weights; null: all weights are trained.")
    schedule: ScheduleSection = Field(ScheduleSection(), description="The learning rate over the steps.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Arithmetic of matrix products; weights and optimizer stay FP32. fp16 scales the loss dynamically."
    )
    amp_level: Literal["O1", "O2"] = Field(
        "O1",
        description="Of paddle in half precision: O1 casts FP32 weights for products; O2 has half weights beside FP32 masters.",
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

    @property
    def drops(self) -> bool:
        """Whether training zeroes entries at random."""
        return self.dropout > 0 or (self.lora is not None and self.lora.dropout > 0)

    @property
    def samples(self) -> Samples:
        """What the sources hold."""
        if self.objective == "distill" and self.distill is not None:
            return self.distill.samples
        return SAMPLES[self.objective]

    @property
    def of_tokens(self) -> bool:
        """Whether the loss is in nats a token, and not in nats a pair of answers."""
        return self.samples != "pairs"

    @property
    def counted(self) -> str:
        """What the loss is the mean over."""
        return "tokens" if self.of_tokens else "pairs"


SAMPLES: dict[str, Samples] = {"pretrain": "text", "sft": "conversations", "distill": "text", "dpo": "pairs"}
"""What an objective reads."""
BESIDE = ("distill", "dpo")
"""Objectives that hold the model against a second one, which stays as it is."""


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
    api: Literal["fleet", "auto_parallel"] = Field(
        "fleet",
        description="By which of paddle's ways tensors are split. Both compute the same; auto_parallel has no pipeline.",
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

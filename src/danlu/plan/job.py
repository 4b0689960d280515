"""What is planned: a model's dimensions, a layout and the memory techniques, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil

from danlu.errors import UserError
from danlu.model.adapters import adapted
from danlu.model.shape import ModelShape
from danlu.model.stages import split
from danlu.plan.engine import Engine, engine
from danlu.plan.order import SCHEDULES, Schedule
from danlu.recipe import Recipe
from danlu.recipe.second import teacher_shape

WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of an activation. fp8 changes the operands of the linear layers only; what is kept between them stays bf16."""


@dataclass(frozen=True)
class Dimensions:
    """A decoder's shape. Unlike ``model.ModelShape`` it also expresses GPT: two MLP matrices, biases, learned positions."""

    layers: int
    hidden: int
    ffn: int
    """Width of one MLP matrix."""
    heads: int
    kv_heads: int
    vocab: int
    head_size: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    """Three MLP matrices and no biases (Llama), or two and biases everywhere (GPT)."""
    positions: int = 0
    """Rows of a learned position table; 0: rotary."""
    qkv_bias: bool = False
    """These four are a gated decoder's (Qwen 2 and 3); GPT has its biases anyway."""
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_shape(cls, shape: ModelShape) -> Dimensions:
        """The same model without what the planner does not need."""
        return cls(
            layers=shape.layers,
            hidden=shape.hidden_size,
            ffn=shape.ffn_size,
            heads=shape.heads,
            kv_heads=shape.key_value_heads,
            vocab=shape.vocab_size,
            head_size=shape.head_dim,
            tied_embeddings=shape.tied_embeddings,
            qkv_bias=shape.qkv_bias,
            output_bias=shape.output_bias,
            mlp_bias=shape.mlp_bias,
            qk_norm=shape.qk_norm,
        )

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Width of all key heads together; the values have as much again."""
        return self.kv_heads * self.head_size

    @property
    def attention_parameters(self) -> int:
        """Matrix parameters of one layer's attention."""
        return self.hidden * (2 * self.query_width + 2 * self.kv_width)

    @property
    def mlp_parameters(self) -> int:
        """Matrix parameters of one layer's MLP."""
        return (3 if self.gated_mlp else 2) * self.hidden * self.ffn

    @property
    def small_parameters(self) -> int:
        """Norms of one layer, and biases that every tensor rank has whole."""
        if self.gated_mlp:
            return (2 + self.output_bias + self.mlp_bias) * self.hidden + self.qk_norm * 2 * self.head_size
        return 4 * self.hidden + self.query_width + 2 * self.kv_width + self.ffn + 2 * self.hidden

    @property
    def column_biases(self) -> int:
        """Biases of one layer that tensor ranks split, with the columns that they are added to."""
        if not self.gated_mlp:
            return 0
        return self.qkv_bias * (self.query_width + 2 * self.kv_width) + self.mlp_bias * 2 * self.ffn

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(output, input) of one layer's linear layers, by the last part of their names."""
        d, query, kv, ffn = self.hidden, self.query_width, self.kv_width, self.ffn
        attention = {"q_proj": (query, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, query)}
        gate = {"gate_proj": (ffn, d)} if self.gated_mlp else {}
        return attention | gate | {"up_proj": (ffn, d), "down_proj": (d, ffn)}

    @property
    def layer_parameters(self) -> int:
        """All parameters of one layer."""
        return self.attention_parameters + self.mlp_parameters + self.small_parameters + self.column_biases

    @property
    def table(self) -> int:
        """Parameters of one embedding matrix."""
        return self.vocab * self.hidden

    @property
    def final_norm(self) -> int:
        """Parameters of the norm before the output embedding."""
        return self.hidden * (1 if self.gated_mlp else 2)

    @property
    def parameters(self) -> int:
        """All parameters, a tied table once."""
        tables = (1 if self.tied_embeddings else 2) * self.table + self.positions * self.hidden
        return self.layers * self.layer_parameters + tables + self.final_norm


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021), which alone are trained."""

    rank: float
    kinds: tuple[tuple[str, ...], ...]
    """For each layer the matrices that have an adapter, such as q_proj."""
    dropout: bool = True
    """The adapters' input passes a dropout."""
    lengths: bool = False
    """The lengths of the rows of adapted matrices are trained, too (DoRA, Liu et al. 2024)."""
    base_bits: float = 16
    """Width of the frozen linear weights, scales included; below 16 they are quantised (Dettmers et al. 2023)."""
    other_bits: float | None = None
    """Width of frozen weights outside the layers; None: of the head as of linear ones, of the rest 16 or an activation's."""

    @property
    def quantised(self) -> bool:
        """Whether frozen matrices are made wide wherever they are used."""
        return self.base_bits < 16

    @cached_property
    def used(self) -> frozenset[str]:
        """Matrices that have an adapter in some layer. Activations are counted as if all layers had them."""
        return frozenset().union(*self.kinds)


@dataclass(frozen=True)
class Second:
    """A model beside the one that is trained, which runs forward only: a teacher, or what preferences are held against."""

    dimensions: Dimensions
    apart: bool = True
    """It has weights of its own, in FP32; else it is the trained one without its adapters."""
    beside: bool = True
    """Its logits are there beside the trained model's, and not before them."""


@dataclass(frozen=True)
class Job:
    """One training on one layout. Degrees multiply to the number of devices; all sizes are per optimizer step."""

    dimensions: Dimensions
    sequence: int
    micro_batch: int
    global_batch: int
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    """1f1b, interleaved, zero-bubble, zero-bubble-v or gpipe."""
    zero_stage: int = 0
    sequence_parallel: bool = False
    recompute: str = "none"
    """none, selective (what that is depends on the engine) or full."""
    recompute_every: int = 1
    """Recompute in every n-th layer only."""
    precision: str = "bf16"
    """fp32, bf16, fp16 or fp8 (linear layers in 8 bit, the rest bf16)."""
    pure: bool = False
    """Weights, gradients and optimizer all in the 16-bit precision, without FP32 copies."""
    optimizer: str = "adamw"
    """adamw, sgd or none: how many states a parameter has."""
    offload: str = "none"
    """none, optimizer-host, optimizer-disk, parameters-host or parameters-disk (parameters implies the optimizer)."""
    compile: bool = False
    async_tensor: bool = False
    """Tensor-parallel collectives are cut into pieces that overlap with the matrix products."""
    lora: Lora | None = None
    second: Second | None = None
    masks: int = 0
    """Kinds of attention masks that are tensors: of documents, of a window. Plain causal attention has none."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of every pipeline chunk, chunk i on device i modulo `pipeline`; None: the engine's own split."""
    engine_name: str = "danlu"

    @classmethod
    def from_recipe(cls, recipe: Recipe, shape: ModelShape) -> Job:
        """The training that a recipe describes."""
        parallel, memory = recipe.parallel, recipe.memory
        return cls(
            dimensions=Dimensions.from_shape(shape),
            sequence=recipe.data.sequence_length,
            micro_batch=recipe.micro_batch,
            global_batch=recipe.train.global_batch,
            data=parallel.data,
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            virtual_stages=parallel.stages_a_rank,
            schedule=parallel.schedule,
            zero_stage=parallel.zero_stage if parallel.data > 1 else 0,
            sequence_parallel=parallel.sequence_parallel and parallel.tensor > 1,
            recompute=memory.recompute,
            recompute_every=memory.recompute_every,
            precision=recipe.train.precision,
            offload=offload_kind(memory.offload_optimizer, memory.offload_parameters),
            compile=recipe.train.compile,
            lora=adapters(recipe, shape),
            masks=masks(recipe, shape),
            second=second(recipe, shape),
        )

    def with_(self, **changes: object) -> Job:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def engine(self) -> Engine:
        """How the software implements it."""
        return engine(self.engine_name)

    @property
    def devices(self) -> int:
        """Devices of the layout."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def shards(self) -> int:
        """Devices that ZeRO splits over: data and context ranks hold the same parameters."""
        return self.data * self.context

    @property
    def micro_batches(self) -> int:
        """Micro-batches a step on one data rank."""
        return max(1, ceil(self.global_batch / (self.micro_batch * self.data)))

    @property
    def plain_schedule(self) -> Schedule:
        """The schedule by the name that ``plan.order`` gives it; interleaving one chunk is 1F1B."""
        if self.schedule not in SCHEDULES:
            raise UserError(f"schedule: {self.schedule!r} is unknown; give one of {', '.join(SCHEDULES)}")
        return "1f1b" if self.schedule == "interleaved" and self.virtual_stages == 1 else self.schedule

    @property
    def local_sequence(self) -> int:
        """Tokens of a sample that one context rank holds."""
        return ceil(self.sequence / self.context)

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one device."""
        return self.micro_batch * self.local_sequence

    @property
    def width(self) -> int:
        """Bytes of an activation."""
        return WIDTH[self.precision]

    @property
    def residual_bytes(self) -> float:
        """Bytes of one hidden state between layers on one device."""
        width = max(self.width, self.engine.residual)
        return self.tokens * self.dimensions.hidden * width / (self.tensor if self.sequence_parallel else 1)

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Layers of every pipeline chunk in model order."""
        if self.stage_layers is not None:
            return self.stage_layers
        count = self.pipeline * self.virtual_stages
        if count > self.dimensions.layers:
            raise UserError(f"pipeline: {count} stages of {self.dimensions.layers} layers; use at most one stage a layer")
        one = self.dimensions
        if self.engine.split == "balanced":
            return split(one.layers, count, one.attention_parameters + one.mlp_parameters, one.table)
        if self.engine.split == "cumulative":  # a stage ends with the layer that takes it past its share
            layer = one.attention_parameters + one.mlp_parameters
            share = (one.layers * layer + one.table) / count
            ends = [min(int(share * (rank + 1) // layer) + 1, one.layers) for rank in range(count - 1)]
            return tuple(b - a for a, b in pairwise([0, *ends, one.layers]))
        if self.engine.split == "ends":  # the embedding and the head count as a layer each
            even, rest = divmod(one.layers + 2, count)
            sizes = [even + (i < rest) for i in range(count)]
            if count > 1 and min(sizes) > 1:
                return (sizes[0] - 1, *sizes[1:-1], sizes[-1] - 1)
        even, rest = divmod(one.layers, count)
        return tuple(even + (i < rest) for i in range(count))

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """For every pipeline rank the layers of each of its chunks."""
        return tuple(self.chunks[rank :: self.pipeline] for rank in range(self.pipeline))

    def check(self) -> Job:
        """This job, or a UserError that names the field that does not fit."""
        for name in ("sequence", "micro_batch", "global_batch", "data", "tensor", "pipeline", "context", "virtual_stages"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: {getattr(self, name)} is below 1")
        if self.precision not in WIDTH:
            raise UserError(f"precision: {self.precision!r} is unknown; give one of {', '.join(WIDTH)}")
        for name, value in (("heads", self.dimensions.heads), ("vocab", self.dimensions.vocab)):
            if self.tensor > value:
                raise UserError(f"tensor: {self.tensor} ranks for {value} {name}; use at most {value}")
        assert self.plain_schedule and self.chunks
        return self


def adapters(recipe: Recipe, shape: ModelShape) -> Lora | None:
    """Those that a recipe asks for; danlu keeps the frozen weights in FP32, or in the layers as int8 with an FP32 scale a row."""
    settings = recipe.train.lora
    if settings is None:
        return None
    bits = 32.0
    if settings.base == "int8":
        sizes = Dimensions.from_shape(shape).matrices.values()
        bits = 8 + 32 * sum(outputs for outputs, _ in sizes) / sum(outputs * inputs for outputs, inputs in sizes)
    return Lora(
        settings.rank,
        adapted(shape, settings.targets),
        dropout=settings.dropout > 0,
        lengths=settings.dora,
        base_bits=bits,
        other_bits=32,
    )


def masks(recipe: Recipe, shape: ModelShape) -> int:
    """How many kinds of masks the layers of a recipe's model read."""
    if shape.sliding_window is not None and recipe.data.sequence_length > shape.sliding_window:
        return 1 + (shape.full_attention_layers > 0)
    return int(recipe.data.document_mask)


def second(recipe: Recipe, shape: ModelShape) -> Second | None:
    """The model that an objective needs beside the trained one; reads a teacher's config.json. UserError: there is none."""
    if recipe.train.objective == "distill" and recipe.train.distill is not None and recipe.train.distill.cache is None:
        return Second(Dimensions.from_shape(teacher_shape(recipe, shape)))
    if recipe.train.objective == "dpo":
        return Second(Dimensions.from_shape(shape), apart=recipe.train.lora is None, beside=False)
    return None


def offload_kind(optimizer: str, parameters: str) -> str:
    """`Job.offload` of the recipe's two fields; where parameters are offloaded, moments are taken to be too."""
    if parameters != "none":
        return f"parameters-{parameters}"
    return "none" if optimizer == "none" else f"optimizer-{optimizer}"

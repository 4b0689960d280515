"""What is compared: layouts and memory techniques, each a few words, and the small models and batches that they train.

Words: d, t, p and a number are the data, tensor and pipeline degree; z1 to z3 the ZeRO stage; il the interleaved schedule and zb
the zero-bubble one; sp sequence parallelism; full and selective recomputation, every2 in every second layer; disk the optimizer's
moments in a file, shards the parameters of ZeRO 3 in one; drop dropout; comp compilation; lora adapters, dora such with lengths,
dropout and an int8 base; distill a teacher, dpo pairs of answers; auto paddle's auto-parallel; mb and a number the micro-batch;
bf16 and fp16 the precision; b and a number another global batch; a model or a batch by its name below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS, MOVE_STEP = 20, 10
LEARNING_RATE = 1e-3
LENGTH, BATCH = 16, 8
DROPOUT = 0.2
TOLERANCE = {"loss": 1e-5, "norm": 1e-4, "weights": 1e-4, "evaluation": 1e-5}
"""Relative to the one-process float32 run: worst step for loss and norm, worst tensor (largest entry) for weights."""
HALF_TOLERANCE = {"loss": 2e-3, "norm": 2e-2, "weights": 4e-2, "evaluation": 2e-3}
"""bf16 and fp16 against float32; bf16 has 8 bits, a relative step of 0.4 %."""
HALF_AT_LEAST = 1e-6
"""And they must differ from float32 by this, or they did not compute in half precision."""

# An odd number of layers, and a vocabulary that no degree divides.
_BASE = {"layers": 5, "hidden_size": 32, "ffn_size": 64, "heads": 4, "kv_heads": 2, "vocab_size": 101, "max_sequence_length": 64}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tied_embeddings": True},
    "wide": {"kv_heads": 4, "layers": 7},
    "widetied": {"kv_heads": 4, "layers": 4, "tied_embeddings": True},
    "eight": {"kv_heads": 8, "heads": 8, "layers": 8, "hidden_size": 64},
    "even": {"layers": 4, "vocab_size": 96},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", "sliding_window": 5},
    "qwen2": {"family": "qwen2", "qkv_bias": True, "tied_embeddings": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_size": 16},
    # A learning rate for every kind of tensor, the last norm's and the queries' among them.
    "mup": {"mup": {"base_hidden_size": 8, "base_head_size": 4}, "qkv_bias": True, "output_bias": True},
    "muptied": {"mup": {"base_hidden_size": 8, "base_head_size": 4}, "tied_embeddings": True},
}
BATCHES = {
    "packed": "two documents a sample; some positions, and all of one sample, are not supervised",
    "half": "the first half of the samples is not supervised at all, so that some data ranks have nothing to learn from",
    "empty": "every fourth step has no target at all",
    "nomask": "no documents",
}
_MODEL_OF = {"family": "llama", **_BASE}


@dataclass(frozen=True)
class Case:
    """One combination, from its words."""

    words: str
    model: str = "llama"
    batch: str = "packed"
    global_batch: int = BATCH
    parallel: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    dropout: float = 0.0
    compile: bool = False
    lora: bool = False
    dora: bool = False
    objective: str = "pretrain"

    @classmethod
    def of(cls, words: str) -> Case:
        """ValueError: an unknown word."""
        made: dict[str, Any] = {"words": words}
        parallel: dict[str, Any] = {}
        memory: dict[str, Any] = {}
        numbers = {"d": (parallel, "data"), "t": (parallel, "tensor"), "p": (parallel, "pipeline")}
        numbers |= {"z": (parallel, "zero_stage"), "mb": (memory, "micro_batch"), "every": (memory, "recompute_every")}
        for word in words.split():
            match = re.fullmatch(r"([a-z]+)(\d+)", word)
            if word in MODELS:
                made["model"] = word
            elif word in BATCHES:
                made["batch"] = word
            elif word == "disk":
                memory["offload_optimizer"] = "disk"
            elif word == "shards":
                memory["offload_parameters"] = "disk"
            elif word in ("full", "selective"):
                memory["recompute"] = word
            elif word == "il":
                parallel["schedule"] = "interleaved"
            elif word == "zb":
                parallel["schedule"] = "zero-bubble"
            elif word == "drop":
                made["dropout"] = DROPOUT
            elif word == "comp":
                made["compile"] = True
            elif word == "auto":
                parallel["api"] = "auto_parallel"
            elif word in ("lora", "dora"):
                made[word] = True
            elif word in ("distill", "dpo"):
                made["objective"] = word
            elif word == "sp":
                parallel["sequence_parallel"] = True
            elif word in ("bf16", "fp16"):
                made["precision"] = word
            elif match and match[1] == "b":
                made["global_batch"] = int(match[2])
            elif match and match[1] in numbers:
                section, name = numbers[match[1]]
                section[name] = int(match[2])
            elif word != "one":
                raise ValueError(f"{word!r} in {words!r}")
        return cls(**made, parallel=parallel, memory=memory)

    @property
    def processes(self) -> int:
        return int(self.parallel.get("data", 1) * self.parallel.get("tensor", 1) * self.parallel.get("pipeline", 1))

    @property
    def generates(self) -> bool:
        """Whether its greedy continuations must be those of the one-process run: in FP32, and in layouts that can."""
        one_stage = self.parallel.get("schedule", "1f1b") == "1f1b"
        return self.precision == "fp32" and one_stage and not self.parallel.get("sequence_parallel")

    @property
    def reference(self) -> str:
        """The words of the one-process float32 run without accumulation or recomputation."""
        return (
            f"one {self.model} {self.batch} b{self.global_batch}"
            + (" drop" if self.dropout else "")
            + (" lora" if self.lora else "")
            + (" dora" if self.dora else "")
            + (f" {self.objective}" if self.objective != "pretrain" else "")
        )

    @property
    def plain(self) -> str | None:
        """The words of the same layout that keeps all in memory; its results must be the same bits."""
        memory = ("full", "selective", "disk", "shards")
        words = [word for word in self.words.split() if word not in memory and not word.startswith("every")]
        # A compiler may fuse, and so round, the two differently.
        return " ".join(words) if len(words) < len(self.words.split()) and not self.compile else None

    @property
    def tolerance(self) -> dict[str, float]:
        return TOLERANCE if self.precision == "fp32" else HALF_TOLERANCE

    def tree(self) -> dict[str, Any]:
        """The recipe."""
        # Clipping is at work in every step: a wrong norm then changes the weights too. And a bias of keys has next to no gradient
        # (a softmax does not see what is added to all of its row): with a smaller epsilon Adam would make steps of its rounding.
        optimizer = {"learning_rate": LEARNING_RATE, "gradient_clipping": 0.5, "epsilon": 1e-6}
        train = {"steps": STEPS, "global_batch": self.global_batch, "optimizer": optimizer}
        return {
            "name": "parity",
            "stages": ["train"],
            "model": _MODEL_OF | MODELS[self.model],
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": LENGTH},
            "train": train | {"precision": self.precision, "device": "cpu", "dropout": self.dropout, "compile": self.compile},
            "parallel": self.parallel,
            "memory": self.memory,
        }


def case_of(job: tuple[str, str], faults: Mapping[str, Any]) -> Case:
    """What a job, (kind, words), trains last."""
    kind, words = job
    return Case.of(faults[words][0] if kind == "fault" else words.split(" -> ")[-1])


def verdict(case: Case, errors: dict[str, Any]) -> bool:
    """Whether errors are within the tolerance of the case."""
    within = all(errors[name] <= limit for name, limit in case.tolerance.items()) if errors else True
    exact = all(errors.get(name, True) for name in ("same_bits", "same_save", "same_tokens", "same_sums"))
    return within and exact and (case.precision == "fp32" or errors["loss"] >= HALF_AT_LEAST)


QUICK = (
    "d4 z1",
    "d4 z3 half",
    "d2 t2 z2",
    "d2 p2 mb2 muptied",
    "t2 p2 mb4 qwen3",
    "t2 p2 sp mb4 qwen2",
    "p4 mb2 tied",
    "d2 p2 z1 il mb2 tied",
    "d2 p2 z3 il mb1",
    "d2 t2 sp z3 half",
    "d2 p2 mb2 selective biases",
    "d2 p2 mb2 bf16",
    "d2 p2 z1 zb mb1 tied empty",
    "d2 t2 sp z3 mb2 drop",
    "d2 t2 z3 disk shards",
    "d2 p2 z1 il mb2 disk tied",
    "d2 t2 z3 mb2 dora tied",
    "d2 t2 z3 mb2 distill tied",
    "d2 t2 sp dpo half",
)
"""Four processes; part of every test run."""

FULL = (
    # One process: accumulation, recomputation and half precision by themselves.
    *("one mb2", "one mb1 tied", "one full", "one full every2 qwen3", "one selective mb4", "one bf16", "one mb2 half"),
    *("one mb2 drop", "one full drop", "one mb2 empty"),
    *("one disk", "one disk tied mb2", "one disk bf16 full"),
    # Two
    *("d2 disk", "d2 z1 disk mb2", "d2 z1 disk mb2 mup", "d2 z2 disk", "d2 z3 disk", "d2 z3 shards", "d2 z3 disk shards full"),
    *("d2 z3 disk shards even", "t2 sp disk", "p2 mb2 disk tied", "d2 z3 disk shards fp16"),
    *("d2", "d2 half", "d2 nomask", "d2 mb1", "d2 z1", "d2 z1 mb2", "d2 z2 mb1", "d2 z3", "d2 z3 tied mb2"),
    *("d2 z3 full qwen2", "d2 bf16", "d2 z3 bf16 mb2"),
    *("t2", "t2 even", "t2 tied", "t2 biases", "t2 qwen2", "t2 qwen3", "t2 mistral", "t2 mb2", "t2 nomask"),
    *("t2 sp", "t2 sp tied", "t2 sp biases", "t2 sp qwen3", "t2 sp mistral mb2", "t2 sp full", "t2 selective", "t2 sp bf16"),
    *("p2 mb4", "p2 mb2 tied", "p2 mb1 even", "p2 mb2 half", "p2 mb2 nomask", "p2 mb2 mistral", "p2 mb4 full every2"),
    *("p2 zb mb2", "p2 zb mb2 tied", "p2 zb mb1 even", "p2 zb mb2 half qwen3", "p2 zb mb2 bf16"),
    *("d2 drop", "d2 z3 mb2 drop full", "t2 drop", "t2 sp drop", "p2 mb2 drop", "p2 il mb2 drop tied", "p2 zb mb2 drop"),
    *("p2 il mb4", "p2 il mb2 tied", "p2 il mb1 even", "p2 il mb2 selective", "p2 il mb2 bf16"),
    *("one full lora", "d2 z1 mb2 lora", "d2 z3 lora qwen2", "p2 mb2 lora", "p2 zb mb2 lora tied", "d2 disk lora"),
    *("t2 lora biases", "t2 sp lora tied", "t2 p2 mb4 lora qwen3", "d2 p2 z3 mb2 lora tied", "d2 t2 z3 mb2 lora tied"),
    *("one full dora", "one comp dora", "d2 z1 dora", "t2 sp dora biases", "p2 zb mb2 dora tied"),
    *("one mb2 distill", "d2 z1 distill half", "d2 z3 mb2 distill", "t2 distill biases", "t2 sp distill mb2 tied"),
    *("one mb2 dpo", "d2 z2 mb2 dpo", "d2 z3 dpo tied", "t2 dpo", "d2 t2 z3 mb2 lora dpo tied", "d2 bf16 distill"),
    # Three: what does not divide by two
    *("d3 b12", "d3 z3 b12 mb2", "p3 mb2"),
    # Four
    *QUICK,
    *("d4 half mb1", "d4 z2 qwen2", "d4 z3 tied full", "d2 t2 selective", "d2 t2 z2 mb2"),
    *("d2 t2 z2 mup", "t2 p2 sp mb4 mup", "d2 p2 z3 mb2 muptied", "d2 p2 mb2 tied"),
    *("t2 p2 sp mb2 qwen2", "t4 sp wide", "t4 wide", "t4 widetied selective", "p4 mb1 wide", "d2 t2 tied"),
    *("d2 t2 z1 biases", "d2 t2 sp z3 mb2 qwen3", "d2 p2 z1 mb1 half", "d2 p2 z3 mb2 tied full", "t2 p2 il mb4 tied"),
    *("t2 p2 sp il mb2 selective", "d2 t2 z3 bf16", "d2 t2 fp16", "d2 p2 z3 mb2 fp16", "t2 p2 sp mb2 bf16"),
    *("t2 p2 sp zb mb2 qwen2", "t2 p2 zb mb4 biases", "p4 zb mb1 eight", "d2 p2 zb mb2 drop half"),
    *("t2 p2 sp selective mb4 drop qwen3",),
    # Compiled: the first of a kind takes a minute.
    *("one selective comp drop", "d2 z3 mb2 comp", "t2 sp comp", "p2 il mb2 comp tied", "d2 t2 z1 full comp"),
    *("d2 p2 z3 mb2 disk shards bf16", "t2 p2 sp mb4 disk qwen3"),
    # Eight
    *("d8 z3", "d2 t2 p2 mb2", "d2 t2 p2 sp z1 mb1 tied", "d2 t2 p2 sp z3 il mb2 qwen2", "d2 t2 p2 z3 mb2 full half"),
    *("d2 t4 z3 sp wide", "t4 p2 mb2 widetied", "p8 mb1 eight", "d4 p2 z1 mb1", "t8 eight", "d2 p4 z3 mb1 tied"),
    *("d2 t2 p2 sp zb z1 mb1 tied", "d2 t2 p2 sp z1 mb2 drop tied"),
)

QUICK_MOVES = (
    ("d4 z3 tied", "t2 p2 mb4 tied"),
    ("p4 mb2 qwen3", "d2 qwen3"),
    ("d4 b12", "d3 z1 b12"),
    ("t2 p2 sp mb4", "one"),
    ("one mb2 qwen2", "d2 t2 z3 qwen2"),
)
"""From the first layout to the second in the middle of the run, optimizer states and all."""

FULL_MOVES = (
    *QUICK_MOVES,
    ("t2", "one"),
    ("d2 z3 disk shards", "p2 mb2 disk"),
    ("one disk", "d2 t2"),
    ("one tied", "p2 mb2 tied"),
    ("d3 z3 b12 mb2", "t2 p2 mb4 b12"),
    ("d8 z3 b24", "d3 z1 b24"),
    ("d2 t2 p2 sp z3 il mb2 qwen2", "t2 sp qwen2"),
    ("d2 t4 z3 sp wide", "p2 il mb2 wide"),
    ("t2 p2 mb4 muptied", "d2 z3 muptied"),
    ("t4 wide", "p4 mb2 wide"),
    ("d2 p2 z3 il mb2 tied", "t2 sp tied"),
    ("d2 t2 p2 sp z1 mb1", "p2 il mb2"),
    ("p2 zb mb2 drop", "t2 sp drop"),
)

PADDLE_QUICK = (
    "d2 z2 mb2",
    "d2 z3 mb2 tied lora",
    "t2 sp biases",
    "t2 tied",
    "p2 mb2 tied half",
    "d2 z1 auto tied",
    "t2 auto qwen3",
)
"""Two processes; part of every test run."""

PADDLE_FULL = (
    *("one mb2", "one full every2 qwen3", "one mb2 drop"),
    *PADDLE_QUICK,
    *("d2", "d2 mb1 half", "d2 z1 mup", "d2 z2 mb1 qwen2", "d2 full empty", "t2", "t2 even mb2", "t2 biases", "t2 qwen3 full"),
    *("t2 mistral nomask", "t2 drop", "p2 mb1 even", "p2 mb4 full every2", "p2 mb2 drop"),
    *("d2 z3", "d2 z3 full qwen2", "d2 z3 drop half", "d2 z3 empty"),
    *("t2 sp", "t2 sp tied mb2", "t2 sp biases full", "t2 sp qwen3 drop", "t2 sp mistral nomask"),
    *("d3 b12", "d3 z2 b12 mb2", "d3 z3 b12 mb2"),
    *("d4 z1", "d4 z2 half", "d2 t2", "d2 t2 z2 mb2 qwen2", "d2 p2 mb2 muptied", "d2 p2 z1 mb1 half drop"),
    *("d4 z3 half", "d2 t2 z3 mb2 qwen3", "d2 p2 z3 mb2 tied full", "d2 p2 z3 mb2 muptied drop"),
    *("t2 p2 sp mb4 qwen2", "d2 t2 sp z3 half", "d2 t2 sp z1 mb2 drop", "t4 sp wide", "t2 p2 sp mb2 nomask tied"),
    *("t2 p2 mb4 tied full", "t4 wide", "p4 mb2 qwen3", "p4 il mb1 eight", "p3 il mb2 b12 wide"),
    *("one full lora", "d2 z1 mb2 lora", "d2 z2 mb2 lora mup", "d2 z3 lora qwen2", "p2 mb2 lora tied", "t2 lora biases"),
    *("one full comp", "d2 z1 mb2 comp tied", "d2 z2 comp drop lora", "p2 mb2 comp tied", "p4 il mb1 comp eight"),
    *("t2 sp lora tied", "t2 auto lora", "d2 t2 p2 sp z3 mb2 lora tied full"),
    *("d2 auto mb1 half", "d2 z2 auto mb2 mup", "d2 auto full empty", "t2 auto", "t2 auto even mb2", "t2 auto biases"),
    *("t2 auto tied", "t2 auto mistral nomask", "t2 auto drop full", "d2 auto drop", "d3 auto b12", "d2 t2 auto"),
    *("d2 t2 z1 auto tied", "t4 auto wide", "d2 t2 z2 auto mb2 qwen2", "d4 t2 z1 auto mb1 half"),
    *(
        "d8 z1 b24",
        "d8 z3",
        "d2 t2 p2 sp z3 mb2 tied",
        "d2 t2 p2 mb2",
        "d2 t2 p2 z1 mb1 tied",
        "p8 mb1 eight",
        "t4 p2 mb2 widetied",
    ),
)

PADDLE_QUICK_MOVES = (("d2 z2 tied", "p2 mb2 tied"), ("p2 mb2 tied", "d2 z3 tied"))
PADDLE_FULL_MOVES = (
    *PADDLE_QUICK_MOVES,
    ("d2 z1", "one"),
    ("one qwen2", "t2 qwen2"),
    ("t2 tied", "d2 z1 tied"),
    ("d2 t2 z1", "t2 p2 mb4"),
    ("t2 p2 mb4 muptied", "d4 z2 muptied"),
    ("t2 tied auto", "d2 z1 tied"),
    ("d2 t2 z1", "d2 t2 z2 auto"),
    ("d2 z2 auto", "one"),
    ("d2 z3 tied", "p2 mb2 tied"),
    ("one qwen2", "d2 t2 z3 qwen2"),
    ("d2 t2 z3 wide", "d4 z1 wide"),
    ("d3 z3 b12", "d2 p2 z3 b12 mb2"),
    ("t2 sp qwen2", "d2 t2 sp z3 qwen2"),
    ("d2 t2 z3 lora tied", "p2 mb2 lora tied"),
    ("t2 lora", "d2 z3 lora"),
    ("d2 t2 sp z3 mup", "t2 p2 mb4 mup"),
)

MATRICES: dict[tuple[str, str], tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    ("torch", "quick"): (QUICK, QUICK_MOVES),
    ("torch", "full"): (FULL, FULL_MOVES),
    ("paddle", "quick"): (PADDLE_QUICK, PADDLE_QUICK_MOVES),
    ("paddle", "full"): (PADDLE_FULL, PADDLE_FULL_MOVES),
}
"""By engine: combinations and moves."""

"""What `danlu model show` and `danlu model list` print, as data."""

from __future__ import annotations

from dataclasses import dataclass

from danlu.model.counts import Precision, flops_per_token, parameter_count, parameter_parts, state_bytes
from danlu.model.presets import PRESETS
from danlu.model.shape import ModelShape


@dataclass(frozen=True)
class Row:
    """One line: `value` for programs (parameters, FLOPs or bytes), `text` for people."""

    section: str
    label: str
    value: float
    text: str


def human_count(value: float) -> str:
    """1234567 -> '1.23 M': three significant digits and thousands, millions, billions, as model names count."""
    return _human(value, 1000, ("", " k", " M", " B", " T"))


def human_flops(value: float) -> str:
    """48234496000 -> '48.2 GFLOP'."""
    return _human(value, 1000, (" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP"))


def human_bytes(value: float) -> str:
    """1536 -> '1.5 KiB': three significant digits and a binary prefix, as memory is sold."""
    return _human(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"))


def _human(value: float, base: int, units: tuple[str, ...]) -> str:
    scaled, index = float(value), 0
    # 999.5 would round to 1e+03 with three digits, so it moves on to the next unit.
    while scaled >= (999.5 if base == 1000 else base) and index + 1 < len(units):
        scaled, index = scaled / base, index + 1
    digits = f"{scaled:.0f}" if scaled >= 1000 else f"{scaled:.3g}"
    return f"{digits}{units[index]}"


def describe(shape: ModelShape, *, sequence_length: int, precision: Precision = "fp32") -> list[Row]:
    """Rows in three sections: parameters by part, training FLOPs a token at that sequence length, bytes of the training state."""
    parts, state = parameter_parts(shape), state_bytes(shape, precision)
    counts = {
        "embedding": parts.embedding,
        "attention": parts.attention,
        "MLP": parts.mlp,
        "norms": parts.norms,
        "head (tied)" if shape.tied_embeddings else "head": parts.head,
        "total": parts.total,
        "without embeddings": parts.non_embedding,
    }
    flops = {
        "as MFU counts them (full attention square)": flops_per_token(shape, sequence_length),
        "causal half of the square": flops_per_token(shape, sequence_length, causal=True),
    }
    sizes = {
        "weights (FP32)": state.weights,
        "gradients (FP32)": state.gradients,
        "AdamW moments (FP32)": state.optimizer,
        f"{precision} copy of the weights": state.half_copy,
        "total": state.total,
    }
    return [
        *(Row("parameters", label, value, human_count(value)) for label, value in counts.items()),
        *(
            Row(f"training FLOPs a token at {sequence_length:,} tokens", label, value, human_flops(value))
            for label, value in flops.items()
        ),
        *(Row(f"training state, {precision}", label, value, human_bytes(value)) for label, value in sizes.items() if value),
    ]


def preset_rows() -> list[tuple[str, str, ModelShape]]:
    """Name, parameters in human units and shape of every preset, smallest first."""
    ordered = sorted(((parameter_count(shape), name, shape) for name, shape in PRESETS.items()), key=lambda row: row[:2])
    return [(name, human_count(count), shape) for count, name, shape in ordered]

"""Plans in words: layouts, bytes, durations and prices as a person reads them."""

from __future__ import annotations

from danlu.plan.job import Job


def layout(job: Job) -> str:
    """Such as ``data 8 x tensor 8 x pipeline 4 (interleaved), ZeRO 1, sequence parallel``."""
    degrees = [f"{name} {value}" for name, value in (("data", job.data), ("tensor", job.tensor)) if value > 1]
    if job.pipeline > 1:
        degrees.append(f"pipeline {job.pipeline} ({job.schedule})")
    parts = [" x ".join(degrees) or "one process"]
    if job.zero_stage:
        parts.append(f"ZeRO {job.zero_stage}")
    if job.sequence_parallel:
        parts.append("sequence parallel")
    return ", ".join(parts)


def techniques(job: Job) -> str:
    """Such as ``bf16, micro-batch 2 x 16, selective recompute, optimizer on the host``."""
    parts = [job.precision, f"micro-batch {job.micro_batch} x {job.micro_batches}"]
    if job.lora is not None:
        over = f" over {job.lora.base_bits:.0f} bits" if job.lora.quantised else ""
        parts.insert(0, f"{'DoRA' if job.lora.lengths else 'LoRA'} of rank {job.lora.rank:g}{over}")
    if job.recompute != "none":
        parts.append(recompute(job))
    if job.offload != "none":
        parts.append(offload(job.offload))
    return ", ".join(parts)


def recompute(job: Job) -> str:
    """Such as ``selective recompute in every 2nd layer``."""
    if job.recompute == "none":
        return "no recompute"
    every = f" in every {ordinal(job.recompute_every)} layer" if job.recompute_every > 1 else ""
    return f"{job.recompute} recompute{every}"


def offload(kind: str) -> str:
    """Such as ``parameters and optimizer on disk``."""
    what, _, place = kind.partition("-")
    where = {"host": "in host memory", "disk": "on disk"}.get(place, "")
    return {"optimizer": "optimizer", "parameters": "parameters and optimizer"}.get(what, "nothing") + f" {where}".rstrip()


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def gigabytes(size: float) -> str:
    """Decimal, as device memory is sold: 71.2 GB, 0.45 GB."""
    value = size / 1e9
    return f"{value:.1f} GB" if value >= 1 else f"{value:.2g} GB"


def span(hours: float) -> str:
    """Such as 12 min, 3.4 hours, 12 days."""
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"


def dollars(amount: float) -> str:
    """Such as $0.42, $1,234."""
    return f"${amount:,.2f}" if amount < 10 else f"${amount:,.0f}"


def count(number: float) -> str:
    """Such as 533 k, 14.7 B, 8.12 T."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"

"""Recomputation of activations in the backward pass (Chen et al. 2016; selective: Korthikanti et al. 2022)."""

from __future__ import annotations

from functools import partial

from paddle.distributed.fleet.utils import recompute

from danlu.engines.paddle.decoder import CausalLM


def apply(model: CausalLM, mode: str, every: int) -> None:
    """Make every n-th layer keep only its input (full)."""
    if mode == "none":
        return
    for name, block in model.model.layers.items():
        if int(name) % every == 0:
            # Nothing in a layer draws from paddle's random state.
            block.forward = partial(recompute, block.forward, preserve_rng_state=False)

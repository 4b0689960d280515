"""The device that a process trains on, and how fast it multiplies."""

from __future__ import annotations

import math
import os
import time

import paddle

from danlu.errors import UserError
from danlu.recipe import Recipe

PEAK_SECONDS = 0.3
"""How long the matmul peak is measured; the best product of that time counts, since others may use the machine too."""


def device_for(recipe: Recipe) -> str:
    """Such as ``cpu`` or ``gpu:0``, made the current one. UserError: the recipe asks for what it has not."""
    wanted, gpu = recipe.train.device, paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    if wanted == "cuda" and not gpu:
        raise UserError("train.device: cuda was asked for, but paddle sees no GPU here; use train.device=cpu")
    if wanted == "cpu" or not gpu:
        if recipe.train.precision != "fp32":
            raise UserError(
                f"train.precision: {recipe.train.precision} has no matrix products in paddle on a CPU; "
                "give train.precision fp32, or train.engine torch"
            )
        return str(paddle.set_device("cpu")) and "cpu"
    if recipe.watch.profile is not None:
        raise UserError(
            "watch.profile: paddle is profiled on a CPU only so far; leave it out, or give train.device cpu or train.engine torch"
        )
    here = os.environ.get("LOCAL_RANK", "0")  # one GPU a process
    return str(paddle.set_device(f"gpu:{here}")).removeprefix("Place(").removesuffix(")")


@paddle.no_grad()
def matmul_peak(device: str, dtype: str) -> float:
    """FLOP/s of products of square matrices."""
    size = 2048 if device == "cpu" else 8192
    left = paddle.ones([size, size], dtype=dtype)
    best, started = math.inf, time.perf_counter()
    while time.perf_counter() - started < PEAK_SECONDS or best == math.inf:
        _wait(device)
        start = time.perf_counter()
        paddle.matmul(left, left)
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def _wait(device: str) -> None:
    if device != "cpu":
        paddle.device.synchronize()

"""Weights on disk to the executor that computes them best here."""

from __future__ import annotations

from pathlib import Path

from danlu.compress import stored
from danlu.compress.plan import Scheme
from danlu.errors import UserError
from danlu.model.shape import ModelShape
from danlu.serve.executor import BLOCK, CacheType, Executor


def load(
    shape: ModelShape,
    weights: Path,
    scheme: Scheme,
    cache_tokens: int,
    device: str,
    cache: CacheType = "float32",
    threads: int | None = None,
) -> Executor:
    """The weights in memory, and a cache of so many tokens. UserError: damaged weights, or there is no such device.

    ``threads`` compute on a CPU; None: as many as torch takes by itself, which is one a core, or OMP_NUM_THREADS.

    8-bit weights and activations are computed as such on a CPU that can. Elsewhere, where activations are not to be rounded, and
    where some matrices, or keys and values, are not of the type for it, the weights are the float32 numbers that they stand for.
    """
    import torch

    from danlu.serve.torch_executor import TorchExecutor
    from danlu.serve.weights import load_weights

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device}: cannot be used here: {str(error).splitlines()[0]}") from None
    if threads:
        torch.set_num_threads(threads)
    blocks = -(-cache_tokens // BLOCK)
    if scheme == "plain":
        return TorchExecutor(shape, load_weights(shape, weights, device), blocks, cache)
    arrays = stored.read(shape, weights, scheme)
    fits = scheme == "w8a8" and device == "cpu" and cache == "float32" and stored.by_rows(arrays)
    if fits and _has_instructions():
        from danlu.serve.int8.executor import Int8Executor

        return Int8Executor(shape, arrays, blocks, torch.get_num_threads())
    tensors = {name: torch.from_numpy(array).to(device) for name, array in stored.restored(arrays).items()}
    return TorchExecutor(shape, tensors, blocks, cache)


def _has_instructions() -> bool:
    try:
        from danlu.serve.int8.executor import supported
    except ImportError:  # numba is not installed
        return False
    return supported()

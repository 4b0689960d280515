"""A layer of the model on a calibration text: what its projections read, and what it hands on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from danlu.compress.rounding import Floats
from danlu.compress.smoothquant import READERS
from danlu.engines.torch.decoder import Block, attention_masks
from danlu.model.rope import frequencies
from danlu.model.shape import ModelShape


class Seen:
    """What is remembered of the inputs of a projection."""

    def __init__(self, inputs: int) -> None:
        self.squares = torch.zeros(inputs, inputs, dtype=torch.float64)
        self.largest = torch.zeros(inputs)
        self.count = 0

    def add(self, x_ni: Tensor) -> None:
        """Some more of them."""
        self.squares += (x_ni.T @ x_ni).double()
        self.largest = torch.maximum(self.largest, x_ni.abs().amax(0))
        self.count += len(x_ni)

    @property
    def hessian(self) -> NDArray[np.float64]:
        """The mean of x x^T, (i, i)."""
        return (self.squares / self.count).numpy()


class Layer:
    """One decoder layer with weights that can be changed, and windows of hidden states (t, d) to run it on."""

    def __init__(self, shape: ModelShape, number: int) -> None:
        self.shape = shape
        with torch.device("meta"):
            self.block = Block(shape, number)
        inverse, self.factor = frequencies(shape)
        self.frequencies = torch.tensor(inverse, dtype=torch.float32)

    def set(self, weights: Mapping[str, Floats]) -> None:
        """All weights, by their names within the layer."""
        self.block.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, assign=True)

    @torch.inference_mode()
    def run(self, hidden: list[Tensor]) -> list[Tensor]:
        """What the layer makes of the windows."""
        made = []
        for x_td in hidden:
            angles = torch.arange(len(x_td))[None, :, None, None].float() * self.frequencies
            rotary = angles.cos() * self.factor, angles.sin() * self.factor
            masks = attention_masks(0, len(x_td), None, self.shape.sliding_window, x_td)
            made.append(self.block(x_td[None], rotary, masks, None)[0])
        return made

    def observe(self, hidden: list[Tensor]) -> dict[str, Seen]:
        """What is read by the first projection of each of the layer's inputs."""
        seen: dict[str, Seen] = {}
        hooks = []
        for name in READERS:
            module = self.block.get_submodule(name)
            seen[name] = Seen(module.in_features)  # type: ignore[arg-type]
            hooks.append(module.register_forward_pre_hook(_remember(seen[name])))
        try:
            self.run(hidden)
        finally:
            for hook in hooks:
                hook.remove()
        return seen


def _remember(seen: Seen) -> Callable[[nn.Module, Any], None]:
    def hook(_: nn.Module, given: Any) -> None:
        seen.add(given[0].reshape(-1, given[0].shape[-1]))

    return hook

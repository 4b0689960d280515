"""Learning from a teacher's judgement of what the model itself writes (Agarwal et al. 2024; Gu et al. 2024).

Of some samples only the first half is given, and the model draws the second from its own probabilities. Where a sample counts by
its own hand, and which token is drawn, is a function of its number in the run: a resume draws the same again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from danlu.engines.base import Batch
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.distillation import OWN, Distillation
from danlu.engines.torch.dropout import Keys
from danlu.engines.torch.generate import KeyValueCache
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.loss import IGNORED
from danlu.engines.torch.weights import DTYPES
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe

_OF_SAMPLES, _OF_TOKENS = -1, -2
"""In place of a layer, where the hash draws."""


class OnPolicy(Distillation):
    """Samples that the model writes itself have no cross-entropy: nothing tells that what it wrote is right."""

    def __init__(
        self, recipe: Recipe, shape: ModelShape, layout: Layout, device: torch.device, teacher: CausalLM, model: CausalLM
    ) -> None:
        assert recipe.train.distill is not None
        super().__init__(recipe.train.distill, teacher, device)
        self.shape, self.split, self.model, self.keys = shape, layout.tensor, model, Keys(recipe.train.seed)
        self.device, self.dtype = device, DTYPES[recipe.train.precision]

    @torch.no_grad()
    def rewritten(self, batch: Batch) -> Batch:
        """With the second half of some samples drawn anew: as many passes through the model, each of one token."""
        parts = [self._micro({name: array[micro] for name, array in batch.items()}) for micro in range(len(batch["inputs"]))]
        self.writes = True
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}

    def _micro(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = {name: torch.as_tensor(array).to(self.device) for name, array in batch.items()}
        inputs_bt, targets_bt = tensors["inputs"], tensors["targets"]
        b, t = inputs_bt.shape
        given = t // 2
        if "positions" not in tensors:
            tensors["positions"] = torch.arange(t, device=self.device).expand(b, t)
        own_b = uniform(self.keys(tensors["samples"], 1, _OF_SAMPLES))[:, 0] < self.settings.on_policy
        positions_bt, documents_bt = tensors["positions"].clone(), tensors.get("documents")
        positions_bt[:, given:] = positions_bt[:, given - 1 : given] + torch.arange(1, t - given + 1, device=self.device)
        if documents_bt is not None:
            documents_bt = documents_bt.clone()
            documents_bt[:, given:] = documents_bt[:, given - 1 : given]
        drawn = uniform(self.keys(tensors["samples"], t + 1, _OF_TOKENS))
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            whole = self._continued(inputs_bt, positions_bt, documents_bt, drawn, given)
        made = {"inputs": whole[:, :-1], "targets": whole[:, 1:].clone(), "positions": positions_bt}
        made["targets"][:, : given - 1] = IGNORED
        if documents_bt is not None:
            made["documents"] = documents_bt
        chosen = {name: torch.where(own_b[:, None], array, tensors[name]) for name, array in made.items()}
        own_bt = own_b[:, None].expand_as(targets_bt)
        return {**tensors, **chosen, OWN: own_bt}

    def _continued(
        self, inputs_bt: Tensor, positions_bt: Tensor, documents_bt: Tensor | None, drawn: Tensor, given: int
    ) -> Tensor:
        """(b, t + 1): the given tokens, and those that the model draws."""
        b, t = inputs_bt.shape
        cache = KeyValueCache(self.shape, t, self.device, split=self.split, rows=b)
        whole = torch.cat([inputs_bt, inputs_bt[:, :1]], 1)
        begin = 0
        for column in range(given, t + 1):
            seen = None if documents_bt is None else documents_bt[:, :column]
            logits = self.model(whole[:, begin:column], positions_bt[:, begin:column], seen, cache=cache)[:, -1]
            mass = torch.softmax(logits.double(), -1).cumsum(-1)
            token = torch.searchsorted(mass, drawn[:, column : column + 1] * mass[:, -1:], right=True)
            whole[:, column] = token[:, 0].clamp_max(mass.shape[1] - 1)
            begin = column
        return whole


def uniform(keys: Tensor) -> Tensor:
    """Hashes as numbers from 0 to below 1: their upper 53 bits."""
    return ((keys >> 11) & ((1 << 53) - 1)).double() * 2.0**-53

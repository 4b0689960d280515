"""A teacher by itself, asked for its likeliest tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from danlu.data.arrays import Array
from danlu.engines.base import Batch
from danlu.engines.torch.device import device_for
from danlu.engines.torch.frozen import Ending, frozen, inputs
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.loss import Head, blocks
from danlu.engines.torch.weights import DTYPES
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.recipe.second import teacher_shape


class Teacher:
    """The one of a recipe, beside a model of a shape, on one device. UserError: see ``frozen``."""

    def __init__(self, recipe: Recipe, shape: ModelShape) -> None:
        assert recipe.train.distill is not None
        self.settings, self.device = recipe.train.distill, device_for(recipe.train.device)
        self.dtype = DTYPES[recipe.train.precision]
        self.shape = teacher_shape(recipe, shape)
        folder = Path(self.settings.teacher).expanduser()
        self.model = frozen(self.shape, folder, recipe.alone.parallel, Layout(), self.device)

    @torch.no_grad()
    def likeliest(self, batch: Batch) -> tuple[Array, Array]:
        """Of a batch (rows, t): int32 tokens (rows, t, k), float16 logs of their probabilities and the rest's (.., k + 1)."""
        tensors = {name: torch.as_tensor(array).to(self.device) for name, array in batch.items()}
        if "positions" not in tensors:
            tensors["positions"] = torch.arange(tensors["inputs"].shape[1], device=self.device).expand_as(tensors["inputs"])
        ending = Ending()
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            self.model(*inputs(tensors), targets_bt=tensors["targets"], criterion=ending)
            assert ending.seen is not None
            head = Head.of(*ending.seen, None).in_precision()
        found = [self._of_rows(head.hidden_nd[rows] @ head.weight_vd.t()) for rows in head.chunks()]
        rows_t = tensors["inputs"].shape
        tokens, logs = (torch.cat(each).reshape(*rows_t, -1).cpu().numpy() for each in zip(*found, strict=True))
        return tokens, logs

    def _of_rows(self, logits_nv: Tensor) -> tuple[Tensor, Tensor]:
        tokens, logs = [], []
        for block in blocks(logits_nv):
            log_p = torch.log_softmax(logits_nv[block].float() / self.settings.temperature, -1)
            kept, chosen = log_p.topk(self.settings.top_k, -1)
            others = log_p.scatter_(1, chosen, -torch.inf).logsumexp(-1, keepdim=True)
            tokens.append(chosen.int())
            logs.append(torch.cat([kept, others], -1).clamp_min_(float(np.finfo(np.float16).min)).half())
        return torch.cat(tokens), torch.cat(logs)

"""The objective that a recipe names, with the second model that it needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from danlu.engines.torch import lora
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.distillation import Distillation
from danlu.engines.torch.frozen import frozen
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.objective import Objective
from danlu.engines.torch.offline import OfflineDistillation
from danlu.engines.torch.on_policy import OnPolicy
from danlu.engines.torch.preference import Preference
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.recipe.second import teacher_shape


def objective(recipe: Recipe, shape: ModelShape, layout: Layout, device: torch.device, trained: CausalLM) -> Objective:
    """Loads the second model. UserError: it is not there, or does not fit."""
    train = recipe.train
    if train.objective == "distill":
        assert train.distill is not None, "checked in the recipe"
        if train.distill.cache is not None:
            return OfflineDistillation(train.distill, device)
        folder = Path(train.distill.teacher).expanduser()
        teacher = frozen(teacher_shape(recipe, shape), folder, recipe.parallel, layout, device)
        if train.distill.on_policy:
            return OnPolicy(recipe, shape, layout, device, teacher, trained)
        return Distillation(train.distill, teacher, device)
    if train.objective == "dpo":
        if train.lora is not None:  # beside adapters the start is still there
            return Preference(train.dpo, trained, device, partial(lora.set_aside, trained))
        start = Path(str(recipe.model.hugging_face)).expanduser()
        return Preference(train.dpo, frozen(shape, start, recipe.parallel, layout, device), device)
    return Objective(device)

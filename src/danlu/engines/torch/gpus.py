"""The GPUs of this machine, as PyTorch sees them."""

from __future__ import annotations

import os

import torch

from danlu.engines.base import Gpus
from danlu.errors import UserError


def gpus() -> Gpus | None:
    """None: there are none. The first stands for all of them."""
    if not torch.cuda.is_available():
        return None
    first = torch.cuda.get_device_properties(0)
    return Gpus(torch.cuda.device_count(), first.name, first.total_memory, first.multi_processor_count)


def device_for(wanted: str) -> torch.device:
    """This process's, of ``cpu``, ``cuda`` or ``auto``. UserError: there is no GPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device: cuda was asked for, but torch sees no GPU here; use train.device=cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))  # one GPU a process
    torch.cuda.set_device(index)
    return torch.device("cuda", index)

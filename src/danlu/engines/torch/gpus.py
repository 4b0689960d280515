"""The GPUs of this machine, as PyTorch sees them."""

from __future__ import annotations

import torch

from danlu.engines.base import Gpus


def gpus() -> Gpus | None:
    """None: there are none. The first stands for all of them."""
    if not torch.cuda.is_available():
        return None
    first = torch.cuda.get_device_properties(0)
    return Gpus(torch.cuda.device_count(), first.name, first.total_memory, first.multi_processor_count)

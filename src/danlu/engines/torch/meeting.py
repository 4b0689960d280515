"""The store in which processes of the torch engine meet."""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from danlu.engines.meeting import COME_SECONDS, Store


def store() -> Store:
    """The launcher's, or one that the first rank serves."""
    served, _, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=COME_SECONDS))))
    # A torchrun that restarts its processes keeps its store.
    return PrefixStore(f"danlu-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", served)

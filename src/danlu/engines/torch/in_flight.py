"""The collectives that this process has begun and not ended, as torch's flight recorder knows them."""

from __future__ import annotations

import json
from contextlib import suppress

FLIGHT_RECORDER = ("TORCH_FR_BUFFER_SIZE", "2000")
"""The variable that switches it on, to be set before torch is imported: how many collectives it remembers."""


def in_flight() -> list[str]:
    """Their names and groups, the oldest first. gloo records only some; a stack tells the others."""
    from torch._C import _distributed_c10d as c10d

    found = []
    with suppress(AttributeError, RuntimeError, ValueError, KeyError):  # there is no public way to it
        for entry in json.loads(c10d._dump_fr_trace_json(True, True)).get("entries", []):  # type: ignore[attr-defined]
            if not entry["retired"]:
                found.append(f"{entry['profiling_name']} of group {entry['process_group'][-1]}")
    return found

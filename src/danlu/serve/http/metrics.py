"""What the server has done, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from danlu.serve.engine import Engine

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
COUNTERS = {
    "prompt_tokens": "Tokens of the prompts",
    "cached_tokens": "Tokens of the prompts that were in the cache",
    "generated_tokens": "Tokens that were drawn",
    "guessed_tokens": "Tokens of those that were guessed from the text before, and so needed no step of their own",
    "computed_tokens": "Tokens that went through the model",
    "preemptions": "Sequences that gave their blocks to older ones and were computed anew",
}


class Histogram:
    """Seconds by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def lines(self, name: str, help_text: str) -> Iterator[str]:
        """Its text."""
        yield from (f"# HELP {name} {help_text}", f"# TYPE {name} histogram")
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield from (f"{name}_sum {self.sum:.6f}", f"{name}_count {total}")


class Metrics:
    """Times of requests, beside what the engine counts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.first, self.whole = Histogram(), Histogram()
        self.refused = 0

    def text(self) -> str:
        """All of it."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        engine, cache = self.engine, self.engine.cache
        counts = dict(engine.counts)
        for key, what in COUNTERS.items():
            yield from _one(f"danlu_{key}_total", "counter", what, counts.get(key, 0))
        yield from _one("danlu_evicted_blocks_total", "counter", "Blocks of the cache that were given to others", cache.evicted)
        yield from _one("danlu_refused_requests_total", "counter", "Requests that were turned away as too many", self.refused)
        yield from _one("danlu_waiting_sequences", "gauge", "Sequences that wait", len(engine.waiting))
        yield from _one("danlu_running_sequences", "gauge", "Sequences that are computed", len(engine.running))
        yield from _one("danlu_cache_blocks", "gauge", "Blocks of the cache", cache.blocks)
        yield from _one("danlu_cache_blocks_held", "gauge", "Blocks that running sequences hold", cache.held)
        yield from _one("danlu_cache_blocks_kept", "gauge", "Blocks that hold a prefix for later requests", cache.kept)
        yield from ("# HELP danlu_sequences_total Sequences by how they ended", "# TYPE danlu_sequences_total counter")
        for reason in ("stop", "length", "cancelled", "error"):
            yield f'danlu_sequences_total{{reason="{reason}"}} {counts.get(f"ended_{reason}", 0)}'
        yield from self.first.lines("danlu_first_token_seconds", "From the request to its first token")
        yield from self.whole.lines("danlu_request_seconds", "From the request to its last token")


def _one(name: str, kind: str, what: str, value: int) -> Iterator[str]:
    yield from (f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value}")

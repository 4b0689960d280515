"""What is measured of a step beside its result, and put into the metrics: time split, statistics of tensors and of the batch, the
machine. Every process measures; the first one writes, and gets what the others measured by the engine's communication.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from danlu.data.batch_statistics import batch_statistics
from danlu.data.batches import TrainingBatches
from danlu.engines.base import Batch, Engine, Observed, StepResult
from danlu.recipe import Recipe, dump
from danlu.watch import probes
from danlu.watch.export import Facts, Mirror, settings_of
from danlu.watch.histogram import Histogram, compressed, histogram
from danlu.watch.names import of_rank
from danlu.watch.recorder import Recorder
from danlu.watch.system import SystemMeter

CLIPS = 100
"""Steps over which the clip rate is taken."""
PARTS = ("data_wait", "forward", "backward", "communication", "optimizer")


class Recording:
    """One process's measurements. All processes of a layout call the same methods at the same steps."""

    def __init__(self, recipe: Recipe, engine: Engine, whole_batches: TrainingBatches, recorder: Recorder | None) -> None:
        """``whole_batches`` are those of all data ranks together; only the first process, which has a recorder, reads them."""
        self.watch, self.engine, self.batches, self.recorder = recipe.watch, engine, whole_batches, recorder
        self.processes, self.clipping = recipe.parallel.processes, recipe.train.optimizer.gradient_clipping
        self.of_tokens = recipe.train.of_tokens
        self.system = SystemMeter(engine.device)
        self.observed: Observed | None = None
        self.clipped: deque[bool] = deque(maxlen=CLIPS)
        self.parts: deque[dict[str, float]] = deque(maxlen=max(1, self.watch.system_every))
        """Seconds by part of the steps since the last reading of the machine."""
        self.seconds = 0.0
        """Spent here since the step before."""

    def train_step(self, step: int, batch: Batch, learning_rate: float) -> StepResult:
        """The engine's, observed where the recipe asks for it."""
        histograms = _due(self.watch.histograms_every, step)
        if not histograms and not _due(self.watch.statistics_every, step):
            return self.engine.train_step(batch, learning_rate)
        result, self.observed = self.engine.observed_step(batch, learning_rate, histograms)
        return result

    def step(
        self, step: int, batch: int, result: StepResult, values: Mapping[str, float], seconds: float, waited: float
    ) -> Mapping[str, float]:
        """Record a step that is done, and all that is due with it; returns what was recorded.

        ``batch`` is the number of the batch that it had; ``values`` are its own figures.
        """
        start = time.perf_counter()
        parts = {"data_wait": waited, **result.seconds}
        self.parts.append(parts)
        if result.skipped is None:
            self.clipped.append(0 < self.clipping < result.gradient_norm)
        found = {**values, "time/step": seconds, "time/recording": self.seconds}
        if self.of_tokens:
            found["train/perplexity"] = perplexity(result.loss)
        found |= {f"time/{part}": spent for part, spent in parts.items()}
        found["time/other"] = max(0.0, seconds - sum(parts.values()))
        if self.clipping and self.clipped:
            found["train/clip_rate"] = sum(self.clipped) / len(self.clipped)
        if _due(self.watch.system_every, step):
            found |= self._ranks()
        spreads: dict[str, Histogram] = {}
        if self.observed is not None and self.recorder is not None:
            tensors, spreads = tensor_signals(self.observed)
            of_batch, lengths = self._batch(batch, self.observed)
            found |= tensors | of_batch
            spreads |= lengths
        self.observed = None
        if self.recorder is not None:
            self.recorder.scalars(step, found)
            if spreads:
                self.recorder.histograms(step, spreads)
        self.seconds = time.perf_counter() - start
        return found

    def memory(self, step: int, ranks: list[dict[str, int]]) -> None:
        """Record what the memory meter found, by rank."""
        if self.recorder is not None:
            kinds = [kind for kind in ranks[0] if not kind.startswith("peak")]
            found = {of_rank(f"memory/{kind}_bytes", rank): one[kind] for rank, one in enumerate(ranks) for kind in kinds}
            self.recorder.scalars(step, found)

    def _ranks(self) -> dict[str, float]:
        """What every process measures of itself, where it runs, and its mean time split since the last time."""
        own = {f"system/{name}": value for name, value in self.system.read().items()}
        own["memory/resident_bytes"] = float(probes.resident_bytes())
        own |= {f"memory/{kind}_bytes": float(size) for kind, size in self.engine.held_bytes().items()}
        if (device := self.engine.device_memory()) is not None:
            own["memory/device_bytes"] = float(device)
        if self.processes > 1:
            own |= {f"time/{part}": sum(each.get(part, 0.0) for each in self.parts) / len(self.parts) for part in PARTS}
        self.parts.clear()
        return {of_rank(name, rank): value for rank, one in enumerate(self.engine.gather(own)) for name, value in one.items()}

    def _batch(self, number: int, observed: Observed) -> tuple[dict[str, float], dict[str, Histogram]]:
        found = batch_statistics(self.batches[number])
        values = {
            "tokens/supervised_share": found.supervised,
            "tokens/padding_share": found.padding,
            "tokens/duplicate_share": found.duplicate,
        }
        with_histograms = any(sums.spread is not None for sums in observed.tensors.values())
        if found.lengths is None or not with_histograms:
            return values, {}
        return values, {"tokens/document_length": histogram(found.lengths)}


def tensor_signals(observed: Observed) -> tuple[dict[str, float], dict[str, Histogram]]:
    """Values and histograms by the names of ``names.SIGNALS``."""
    values: dict[str, float] = {}
    spreads: dict[str, Histogram] = {}
    size: dict[tuple[str, str], float] = {}
    for (kind, name), sums in observed.tensors.items():
        place = f"layer/{name}/{kind}"
        size[kind, name] = values[f"{place}_rms"] = math.sqrt(sums.squares / sums.entries)
        values[f"{place}_mean"] = sums.total / sums.entries
        values[f"{place}_max"] = sums.largest if math.isfinite(sums.squares) else sums.squares
        values[f"{place}_zeros"] = sums.zeros / sums.entries
        if kind == "gradient":
            values[f"{place}_norm"] = math.sqrt(sums.squares)
        if sums.spread is not None:
            spreads[place] = compressed(sums.spread, int(sums.spread[:, -1].sum()))
    for (kind, name), update in size.items():
        if kind == "update" and size["parameter", name]:
            values[f"layer/{name}/update_ratio"] = update / size["parameter", name]
    values |= {f"layer/{name}/attention_logit_max": largest for name, largest in observed.attention_logits.items()}
    return values, spreads


def follow(recorder: Recorder, recipe: Recipe, folder: Path, first_step: int) -> None:
    """Write what is recorded from now on in the other formats that the recipe names as well; anew, where the run went back."""
    if recorder.follower is not None:
        recorder.follower.close()
    if recipe.watch.export:
        facts = Facts(settings_of(recipe.model_dump(mode="json")), dump(recipe))
        recorder.follower = Mirror(recorder.path, {kind: folder / kind for kind in recipe.watch.export}, facts, first_step)


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def perplexity(loss: float) -> float:
    """e to a loss in nats; infinite where a float cannot hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf

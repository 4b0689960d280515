"""The doctor beside a run: it feeds the invariants to the doctor's live form and says what news there is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danlu.data.batches import TrainingBatches
from danlu.data.prepared import Prepared
from danlu.doctor.diagnose import diagnose
from danlu.doctor.finding import Finding, Severity
from danlu.doctor.live import Live
from danlu.doctor.load import facts_of, from_store
from danlu.engines.base import Batch, Engine
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.train.invariants.accumulation import PASSES, Accumulation
from danlu.train.invariants.batch import of_batch, rows
from danlu.train.invariants.evaluation import EARLY, Probe, interval
from danlu.train.invariants.repeats import Repeats
from danlu.train.invariants.weights import Weights
from danlu.train.position import Position
from danlu.train.validation import held_out
from danlu.watch import probes

LEAST_LENGTH = 8
"""Tokens of a sample below which the probes have nothing to vary."""


class Attendant:
    """One process's share: every process measures, the first one has the doctor. With doctor.every 0 it does nothing.

    Steps are counted from 0, as positions in the data are; signals are recorded at the number of the step done.
    """

    def __init__(self, recipe: Recipe, shape: ModelShape, engine: Engine, prepared: Prepared) -> None:
        self.recipe, self.engine, self.every = recipe, engine, recipe.doctor.every
        self.end_id = prepared.end_id
        whole = self.whole = TrainingBatches(
            prepared.train,
            sequence_length=recipe.data.sequence_length,
            global_batch=recipe.train.global_batch,
            micro_batch=recipe.train.global_batch,
            document_mask=recipe.data.document_mask,
            seed=recipe.train.seed,
        )
        validation = held_out(recipe, prepared) if self.every and engine.rank == 0 else ()
        self.repeats = Repeats(whole.samples, recipe.train.global_batch, validation)
        self.information: dict[str, Any] = {
            "vocabulary": shape.vocab_size,
            "epoch_samples": whole.samples,
            "held_out_rows": len(self.repeats.held_out),
            "resident_limit": probes.resident_bytes() + probes.available_memory_bytes(),
            "mapped_bytes": prepared.train.mapped_bytes + prepared.validation.mapped_bytes,
            "drawn": recipe.model.hugging_face is None,
        }
        """Facts of this run beside its recipe; they are kept with its segments."""
        self.weights = Weights(shape)
        few = recipe.train.global_batch if recipe.parallel.pipeline > 1 else 2 * recipe.parallel.data
        few = min(few, recipe.train.global_batch)
        exact = not recipe.train.drops and recipe.train.of_tokens
        self.probe = Probe(engine, few, shape.max_sequence_length, recipe.data.document_mask, exact)
        self.accumulation = Accumulation(engine, recipe)
        self.interval = interval(few, recipe.train.global_batch, PASSES if self.accumulation.asked else 0)
        self.live = Live()
        self.begun = 0
        self.seconds = 0.0
        """Taken since it was recorded last; diagnoses are counted with the step after."""

    def begin(self, position: Position, metrics: Path) -> None:
        """Ahead of the first step of this start, or where the run goes on after going back."""
        if not self.every:
            return
        step = self.begun = position.step
        self.information["rate_factor"] = position.rate_factor
        self.weights.begin(self.engine.vitals())
        if self.engine.rank > 0:
            return
        facts = facts_of(self.recipe, {**self.information, "device": self.engine.device})
        told = {rule: min(severity, Severity.WARNING) for rule, severity in self.live.told.items()}
        history, resumes = {}, []
        if step and metrics.exists():
            before = from_store(metrics, facts)
            history = {name: one.between(0, step) for name, one in before.signals.items()}
            resumes = [*(each for each in before.resumes if each <= step), step + 1]
        self.live = Live(facts, history=history, resumes=resumes, share=self.recipe.doctor.time_share)
        self.live.told = told  # what is critical, and would lead to another return, is news again

    def before(self, position: Position, batch: Batch) -> dict[str, float]:
        """What is measured ahead of a step. All processes call."""
        if not self.every:
            return {}
        start = time.perf_counter()
        step, place = position.step, position.batch
        found = of_batch(batch, self.end_id) | self.repeats.measure(place, rows(batch["inputs"]))
        if self._looks(step) and self.recipe.parallel.data > 1:
            different = len(set(self.engine.gather(found["batch/hash"])))
            found["batch/shared"] = 1 - different / self.recipe.parallel.data
        if self._probes(step):
            whole = self.whole[place]
            found |= self.probe.measure(whole) | self.accumulation.measure(whole)
        self.seconds += time.perf_counter() - start
        return found

    def after(self, position: Position) -> dict[str, float]:
        """What is measured after it, ahead of its being counted."""
        if not self.every:
            return {}
        start = time.perf_counter()
        step, found = position.step, {}
        if self._looks(step):
            vitals = self.engine.vitals()
            found = self.weights.measure(vitals) | {f"optimizer/{name}": value for name, value in vitals.optimizer.items()}
        if self._probes(step):
            found |= self.probe.again(self.whole[position.batch])
        found["time/doctor"] = self.seconds + time.perf_counter() - start
        self.seconds = 0.0
        return found

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take what is recorded of a step done."""
        if self.every and self.engine.rank == 0:
            self.live.add(step, values)

    def asked(self, position: Position) -> bool:
        """Whether the doctor may have news, after a step done; the same on all processes."""
        return self.every > 0 and (position.step % self.every == 0 or self._ends(position))

    def news(self, position: Position) -> list[Finding]:
        """Findings that were not told before; on the first process, once enough time has passed, and at the end."""
        if self.engine.rank > 0 or not (self._ends(position) or self.live.due):
            return []
        start = time.perf_counter()
        news = self.live.news()
        self.seconds += time.perf_counter() - start
        return news

    def said(self, metrics: Path) -> list[dict[str, Any]] | None:
        """What the doctor found in all, for the summary, the gravest first; None without a doctor, or on the other processes."""
        if not self.every or self.engine.rank > 0:
            return None
        diagnosis = self.live.last or diagnose(from_store(metrics, facts_of(self.recipe, self.information)))
        return [
            {"rule": one.rule, "severity": one.severity.name.lower(), "step": one.step, "verdict": one.verdict.en}
            for one in diagnosis.findings
        ]

    def _ends(self, position: Position) -> bool:
        """Whether the run would end here."""
        train = self.recipe.train
        return position.step == train.steps or position.non_finite >= train.non_finite_limit

    def _looks(self, step: int) -> bool:
        return (step + 1) % self.every == 0

    def _probes(self, step: int) -> bool:
        early = step - self.begun in EARLY or step % self.interval == 0
        return early and self.recipe.data.sequence_length >= LEAST_LENGTH

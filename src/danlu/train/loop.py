"""The training loop: steps, validations, checkpoints and what is recorded of them. It knows the engine by its protocol only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from danlu.data.batches import TrainingBatches, evaluation_batches
from danlu.data.prepared import Prepared
from danlu.engines.base import Batch, Engine, StepResult
from danlu.errors import Interrupted, RunStopped, UserError
from danlu.model.counts import flops_per_token, parameter_count, state_bytes
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.train import checkpoint
from danlu.train.interrupt import Interrupt, watched
from danlu.train.schedule import learning_rate
from danlu.watch import probes
from danlu.watch.console import LiveLine, Progress, header
from danlu.watch.format import bytes_text, count, duration
from danlu.watch.store import Recorder

LOSS_SCALE_OVERFLOW = "loss scale overflow"
"""The skipped step that is part of fp16 training and no cause for worry."""


@dataclass
class Position:
    """Where a run stands; saved with every checkpoint and enough to go on bit for bit."""

    step: int = 0
    """Optimizer steps done; also the position in the data, whose order is a function of (seed, step)."""
    first_loss: float | None = None
    last_loss: float | None = None
    validation_loss: float | None = None
    non_finite: int = 0
    """Non-finite steps in a row."""
    tokens: int = 0
    """Tokens trained on."""
    step_seconds: float = 0.0
    """Time spent in steps, validations and checkpoints apart."""


def train(recipe: Recipe, shape: ModelShape, engine: Engine, prepared: Prepared, folder: Path, stream: TextIO) -> dict[str, Any]:
    """Train to the recipe's last step, from the newest good checkpoint below ``folder`` if there is one; return the summary.

    Interrupted: somebody asked for it. RunStopped: going on makes no sense. In both a checkpoint has been saved.
    """
    live = LiveLine(stream, recipe.watch.print_every)
    with Recorder.open(folder / "metrics.sqlite") as recorder, watched(live.note) as interrupt:
        session = _Session(recipe, shape, engine, prepared, folder, live, recorder, interrupt)
        session.restore()
        if session.position.step < recipe.train.steps:
            header(session.header_rows(), stream)
            session.run()
            live.close()
        else:
            live.note(f"already trained: {session.position.step} of {recipe.train.steps} steps")
        return session.summary()


class _Session:
    """One process's share of a run: from a start or a resume to the end or a stop."""

    def __init__(
        self,
        recipe: Recipe,
        shape: ModelShape,
        engine: Engine,
        prepared: Prepared,
        folder: Path,
        live: LiveLine,
        recorder: Recorder,
        interrupt: Interrupt,
    ) -> None:
        self.recipe, self.shape, self.engine, self.prepared = recipe, shape, engine, prepared
        self.checkpoints, self.live, self.recorder, self.interrupt = folder / "checkpoints", live, recorder, interrupt
        self.folder = folder
        self.position = Position()
        self.saved: int | None = None
        self.source = TrainingBatches(
            prepared.train,
            sequence_length=recipe.data.sequence_length,
            global_batch=recipe.train.global_batch,
            micro_batch=recipe.micro_batch,
            document_mask=recipe.data.document_mask,
            seed=recipe.train.seed,
        )
        self.step_tokens = recipe.train.global_batch * recipe.data.sequence_length
        self.flops = flops_per_token(shape, recipe.data.sequence_length)
        self.peak = engine.matmul_peak()

    def restore(self) -> None:
        """Draw or import the first weights, or continue where the newest good checkpoint stands."""
        found = checkpoint.latest(self.checkpoints, self.live.note, repair=True)
        if found is None:
            if self.recipe.model.hugging_face is not None:
                self.engine.import_weights(Path(self.recipe.model.hugging_face).expanduser())
            else:
                self.engine.initialise()
        else:
            if found.state["data"] != self.prepared.fingerprint:
                raise UserError(
                    f"{found.path} was trained on other data than {self.prepared.folder} holds; "
                    "delete the checkpoints to train from the start, or bring the data back"
                )
            self.engine.load(found.path, found.state["engine"])
            self.position = Position(**found.state["position"])
            self.saved = found.step
        done = self.position.step
        self.recorder.start_segment(done + 1, {"device": self.engine.device, "precision": self.recipe.train.precision})
        self._event("start" if found is None else "resume", "training starts" if found is None else f"resumed from {found.path.name}")

    def header_rows(self) -> list[tuple[str, str]]:
        """What a person wants to know before the first step."""
        recipe, steps = self.recipe, self.recipe.train.steps
        tokens, total = self.prepared.train.tokens, self.step_tokens * steps
        batch = f"{recipe.train.global_batch} samples of {recipe.data.sequence_length} tokens"
        if recipe.accumulation > 1:
            batch += f", in {recipe.accumulation} micro-batches of {recipe.micro_batch}"
        rows = [
            ("model", f"{self.shape.family}, {count(parameter_count(self.shape))} parameters, vocabulary {self.shape.vocab_size:,}"),
            ("data", f"{count(tokens)} training tokens; {count(total)} to train on ({total / tokens:.2f} epochs)"),
            ("batch", batch),
            ("device", f"{self.engine.device}, {recipe.train.precision}, matmul peak {self.peak / 1e9:,.0f} GFLOP/s"),
            ("folder", str(self.folder)),
        ]
        if self.position.step:
            rows.append(("resumed", f"after step {self.position.step} of {steps}"))
        size = state_bytes(self.shape)
        wanted = (size.weights + size.optimizer) * (recipe.checkpoint.keep + 1)
        if (free := probes.disk_free_bytes(self.folder)) < wanted:
            rows.append(("warning", f"{bytes_text(free)} of disk free; {recipe.checkpoint.keep} checkpoints need {bytes_text(wanted)}"))
        return rows

    def run(self) -> None:
        """All steps that are left."""
        position, train = self.position, self.recipe.train
        batches = self.engine.loader(self.source, range(position.step, train.steps), self.recipe.data.workers)
        while position.step < train.steps:
            self._step(batches)
            last = position.step == train.steps
            if last or (train.evaluate_every and position.step % train.evaluate_every == 0):
                self._validate()
            if last or position.step % self.recipe.checkpoint.every == 0:
                self._save()
            if position.non_finite >= train.non_finite_limit:
                self._stop_non_finite()
            if self.interrupt.requested and not last:
                self._save()
                self._event("interrupted", f"interrupted after step {position.step}")
                self.live.close()
                raise Interrupted(f"stopped after step {position.step} of {train.steps} with a checkpoint; run the same command to go on")
        self._event("finished", f"all {train.steps} steps done")

    def _step(self, batches: Iterator[Batch]) -> None:
        position, train = self.position, self.recipe.train
        rate = learning_rate(
            position.step,
            name=train.schedule.name,
            peak=train.optimizer.learning_rate,
            steps=train.steps,
            warmup_steps=self.recipe.warmup_steps,
            final_ratio=train.schedule.final_ratio,
        )
        start = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - start
        result = self.engine.train_step(batch, rate)
        seconds = time.perf_counter() - start
        position.step += 1
        position.tokens += self.step_tokens
        position.step_seconds += seconds
        position.last_loss = result.loss
        if position.first_loss is None:
            position.first_loss = result.loss
        self._judge(result)
        self._show(result, rate, seconds, waited)

    def _judge(self, result: StepResult) -> None:
        if result.skipped is None:
            self.position.non_finite = 0
            return
        if result.skipped != LOSS_SCALE_OVERFLOW:
            self.position.non_finite += 1
        self._event("skipped_step", f"step {self.position.step} skipped: {result.skipped}", loss_scale=result.loss_scale)
        self.live.note(f"step {self.position.step}: {result.skipped}; the update was skipped")

    def _show(self, result: StepResult, rate: float, seconds: float, waited: float) -> None:
        position = self.position
        speed = self.step_tokens / seconds
        mfu = speed * self.flops / self.peak
        memory = probes.resident_bytes()
        values = {
            "train/loss": result.loss,
            "train/gradient_norm": result.gradient_norm,
            "train/learning_rate": rate,
            "train/tokens_per_second": speed,
            "train/mfu": mfu,
            "time/step": seconds,
            "time/data_wait": waited,
            "memory/resident_bytes": memory,
        }
        if self.recipe.train.precision == "fp16":
            values["train/loss_scale"] = result.loss_scale
        device_memory = self.engine.device_memory()
        if device_memory is not None:
            values["memory/device_bytes"] = device_memory
        self.recorder.scalars(position.step, values)
        left = (self.recipe.train.steps - position.step) * position.step_seconds / position.step
        self.live.update(
            Progress(
                step=position.step,
                total=self.recipe.train.steps,
                loss=result.loss,
                validation_loss=position.validation_loss,
                validation_ratio=position.validation_loss / result.loss if position.validation_loss is not None else None,
                gradient_norm=result.gradient_norm,
                learning_rate=rate,
                tokens_per_second=speed,
                mfu=mfu,
                memory_bytes=memory if device_memory is None else device_memory,
                data_wait=waited / seconds,
                seconds_left=left,
            )
        )

    def _validate(self) -> None:
        if not self.prepared.validation.tokens:
            return
        total, tokens = 0.0, 0
        for batch in evaluation_batches(
            self.prepared.validation,
            sequence_length=self.recipe.data.sequence_length,
            batch=self.recipe.micro_batch,
            document_mask=self.recipe.data.document_mask,
            max_tokens=self.recipe.train.evaluate_tokens,
        ):
            nats, supervised = self.engine.evaluate(batch)
            total, tokens = total + nats, tokens + supervised
        loss = total / tokens
        self.position.validation_loss = loss
        values = {"validation/loss": loss}
        if self.position.last_loss:
            values["validation/ratio"] = loss / self.position.last_loss
        self.recorder.scalars(self.position.step, values)
        self.live.note(f"step {self.position.step}: validation loss {loss:.4f} on {count(tokens)} tokens")

    def _save(self) -> None:
        if self.saved == self.position.step:
            return
        start = time.perf_counter()

        def write(folder: Path) -> dict[str, Any]:
            engine_state = self.engine.save(folder)
            return {"engine": engine_state, "position": asdict(self.position), "data": self.prepared.fingerprint}

        path = checkpoint.save(self.checkpoints, self.position.step, write, self.recipe.checkpoint.keep)
        self.saved = self.position.step
        seconds = time.perf_counter() - start
        self._event("checkpoint", f"saved {path.name} in {duration(seconds)}", seconds=seconds)

    def _stop_non_finite(self) -> None:
        self._save()
        message = (
            f"{self.position.non_finite} steps in a row were not finite and were skipped; stopped after step {self.position.step} with a "
            "checkpoint of the last good weights. Usual causes: a learning rate that is too high, fp16 where bf16 is at hand, damaged data"
        )
        self._event("stop", message)
        self.live.close()
        raise RunStopped(message)

    def _event(self, kind: str, message: str, **data: Any) -> None:
        self.recorder.event(self.position.step, kind, message, **data)

    def summary(self) -> dict[str, Any]:
        """The run in one flat object. Losses in nats a token, time in seconds of steps alone."""
        position = self.position
        return {
            "name": self.recipe.name,
            "steps": position.step,
            "parameters": parameter_count(self.shape),
            "tokens": position.tokens,
            "first_loss": position.first_loss,
            "last_loss": position.last_loss,
            "last_validation_loss": position.validation_loss,
            "tokens_per_second": position.tokens / position.step_seconds if position.step_seconds else None,
        }

"""The training loop: steps, validations, checkpoints and what is recorded of them. It knows the engine by its protocol only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from danlu import heartbeat
from danlu.data.prepared import Prepared
from danlu.doctor import show
from danlu.doctor.finding import Finding
from danlu.engines.base import LOSS_SCALE_OVERFLOW, NOTHING_SUPERVISED, Batch, Engine, StepResult
from danlu.errors import Interrupted, RunStopped, UserError
from danlu.model.shape import ModelShape
from danlu.plural import many
from danlu.recipe import Recipe
from danlu.train import audited, checkpoint, replicas, taught, treatment
from danlu.train.attended import Attendant
from danlu.train.continuation import Prompts
from danlu.train.figures import figures
from danlu.train.header import header_rows
from danlu.train.imported import check_teacher, tokenizer_warning
from danlu.train.interrupt import Interrupt, watched
from danlu.train.metered import memory_text
from danlu.train.position import Position, summary, summary_rows
from danlu.train.profiling import Profiling
from danlu.train.recording import Recording, follow, perplexity
from danlu.train.retained import Retained
from danlu.train.saves import Saves
from danlu.train.schedule import rate_at
from danlu.train.validation import held_out_loss
from danlu.watch.console import LiveLine, Progress, header
from danlu.watch.format import count, duration
from danlu.watch.store import Recorder


def train(recipe: Recipe, shape: ModelShape, engine: Engine, prepared: Prepared, folder: Path, stream: TextIO) -> dict[str, Any]:
    """Train to the recipe's last step, from the newest good checkpoint below ``folder`` if there is one; return the summary.

    Interrupted: somebody asked for it; a checkpoint was saved. RunStopped: going on makes no sense, and a checkpoint was saved,
    or the disk is full. KeyboardInterrupt: somebody asked twice; the steps since the last checkpoint are lost.
    """
    leads = engine.rank == 0
    stream = stream if leads else open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    check_teacher(recipe, prepared)
    live = LiveLine(stream, recipe.watch.print_every)
    with Recorder.open(folder / "metrics.sqlite") if leads else nullcontext() as recorder, watched() as interrupt:
        session = _Session(recipe, shape, engine, prepared, folder, live, recorder, interrupt)
        resumed = session.restore()
        if session.position.step >= recipe.train.steps:
            live.note(f"already trained: {session.position.step} of {many(recipe.train.steps, 'step')}")
            return session.summary()
        session.check_replicas()
        session.position.take_peak(engine.matmul_peak(), engine.device)
        header(session.header_rows(), stream)
        session.start_segment(resumed)
        try:
            session.run()
        except (Interrupted, RunStopped, KeyboardInterrupt) as end:
            session.event("stop" if isinstance(end, RunStopped) else "interrupted", str(end) or "stopped at once")
            live.close()
            header(session.summary_rows(), stream)
            raise
        except Exception:
            session.keep_what_was_begun()
            raise
        live.close()
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
        recorder: Recorder | None,
        interrupt: Interrupt,
    ) -> None:
        self.recipe, self.shape, self.engine, self.prepared = recipe, shape, engine, prepared
        self.folder, self.checkpoints = folder, folder / "checkpoints"
        self.live, self.recorder, self.interrupt = live, recorder, interrupt
        self.position = Position()
        answers = taught.required(recipe, prepared)
        self.second = taught.second(recipe, answers)
        self.saves = Saves(recipe, engine, self.checkpoints, prepared.fingerprint, self.second)
        self.warnings: list[str] = []
        self.metered: int | None = None
        """Steps done before the one that is metered."""
        self.source = taught.batches(recipe, prepared, engine.data_rank, recipe.parallel.data, beside=answers)
        self.attendant = Attendant(recipe, shape, engine, prepared)
        whole = self.source if recipe.parallel.data == 1 else self.source.whole()
        self.retained = Retained(recipe, engine, prepared)
        self.profiling = Profiling(recipe, engine, folder)
        self.recording = Recording(recipe, engine, whole, recorder)
        self.prompts = Prompts(recipe, shape, prepared)
        self.verified: int | None = None
        """The step after which replicas were last found to be equal."""
        self.done_before: set[str] = set()
        """What was done since the start; the first time takes longer."""
        self.step_tokens = recipe.train.global_batch * recipe.data.sequence_length
        self.flops = taught.flops_a_token(recipe, shape)

    def restore(self) -> str | None:
        """Draw or import the first weights, or continue where the newest good checkpoint stands; return what to record of it."""
        said: list[str] = []
        found = checkpoint.latest(self.checkpoints, said.append, self.recorder is not None, self.engine)
        for line in said:
            self.live.note(line)
        if found is None:
            if self.recipe.model.hugging_face is not None:
                weights = Path(self.recipe.model.hugging_face).expanduser()
                self.engine.import_weights(weights)
                if warning := tokenizer_warning(weights, self.prepared, self.shape.vocab_size):
                    self.warnings.append(warning)
            else:
                self.engine.initialise()
            return None
        if found.state["data"] != self.prepared.fingerprint:
            raise UserError(
                f"{found.path} was trained on other data than {self.prepared.folder} holds; "
                "delete the checkpoints to train from the start, or bring the data back"
            )
        taught.check_second(self.recipe, found.path, found.state.get("second"), self.second)
        self.engine.load(found.path, found.state["engine"])
        self.position = Position(**found.state["position"])
        self.saves.begun = self.saves.complete = found.step
        return "; ".join([*said, f"resumed from {found.path.name}"])

    def start_segment(self, resumed: str | None) -> None:
        """Open this process's segment of the metrics."""
        self._open_segment()
        self.event("start" if resumed is None else "resume", resumed or "training starts")
        for warning in self.warnings:
            self.event("warning", warning)
        if resumed is None:
            self._record(self.retained.measure())
            for finding in audited.before_first_step(self.recipe, self.shape, self.engine, self.prepared, self.folder):
                self._tell("audit", "before step 1", finding)

    def _open_segment(self) -> None:
        info = {"device": self.engine.device, "precision": self.recipe.train.precision, "peak": self.position.peak}
        info |= {
            "steps": self.recipe.train.steps,
            "tokens_per_step": self.step_tokens,
            "flops_per_step": self.flops * self.step_tokens,
        }
        self.attendant.begin(self.position, self.folder / "metrics.sqlite")
        if self.recorder is not None:
            self.recorder.start_segment(self.position.step + 1, info | self.attendant.information)
            follow(self.recorder, self.recipe, self.folder, self.position.step + 1)

    def header_rows(self) -> list[tuple[str, str]]:
        """What is printed before the first step."""
        return header_rows(self.recipe, self.shape, self.prepared, self.position, self.engine.device, self.folder, self.warnings)

    def check_replicas(self) -> None:
        """RunStopped: what ranks should hold alike is no longer the same bits. Nothing is saved, since it may be ruined."""
        if self.recipe.parallel.processes == 1 or self.verified == self.position.step:
            return
        self._doing("compares replicas")
        replicas.check(self.engine, self.position.step, self.verified)
        self.verified = self.position.step

    def _doing(self, what: str) -> None:
        """Tell the watchdog."""
        heartbeat.doing(f"{what} after step {self.position.step}", first=what not in self.done_before)
        self.done_before.add(what)

    def run(self) -> None:
        """All steps that are left."""
        position, train = self.position, self.recipe.train
        if self.recipe.watch.memory:  # the second step: the first makes the optimizer's states on the way
            self.metered = min(position.step + 1, train.steps - 1)
        batches = self._batches()
        while self.position.step < train.steps:
            self._step(batches)
            if self._went_back():
                batches = self._batches()
                continue
            position = self.position
            last = position.step == train.steps
            self._finish_save(wait=last)
            if (every := self.recipe.watch.replica_check_every) and position.step % every == 0:
                self.check_replicas()
            if last or (train.evaluate_every and position.step % train.evaluate_every == 0):
                self._validate()
            self._sample()
            if last:  # ahead of the checkpoint: once that is there, no later run records anything
                self.event("finished", f"all {many(train.steps, 'step')} done")
            if last or (position.step % self.recipe.checkpoint.every == 0 and not position.non_finite):
                self._save(background=self.recipe.checkpoint.asynchronous and not last)
            if position.non_finite >= train.non_finite_limit:
                self._stop_non_finite()
            if self.engine.agree(self.interrupt.requested) and not last:
                self._save(background=False)
                done = f"step {position.step} of {train.steps}"
                raise Interrupted(f"stopped after {done} with a checkpoint; run the same command to go on")

    def _step(self, batches: Iterator[Batch]) -> None:
        position = self.position
        rate = position.rate_factor * rate_at(self.recipe, position.step)
        self.profiling.before(position.step + 1)
        start = time.perf_counter()
        self._doing("loads data")
        batch = next(batches)
        self._doing("trains")
        waited = time.perf_counter() - start
        signals = self.attendant.before(position, batch)
        start = time.perf_counter() - waited  # what is measured beside the step is no part of it
        result = self._train(batch, rate)
        seconds = time.perf_counter() - start
        signals |= self.attendant.after(position)
        position.count_step(result.loss, self.step_tokens, seconds)
        self._judge(result)
        self._record(signals)
        self._show(result, rate, seconds, waited)
        if (said := self.profiling.after(position.step, result, seconds, waited, position.peak)) is not None:
            self.live.note(said)

    def _batches(self) -> Iterator[Batch]:
        """Those of the steps that are left."""
        first, left = self.position.batch, self.recipe.train.steps - self.position.step
        return self.engine.loader(self.source, range(first, first + left), self.recipe.data.workers)

    def _went_back(self) -> bool:
        """Ask the doctor, tell what it says, and do what the recipe wants. RunStopped: that is to stop."""
        step = self.position.step
        if not self.attendant.asked(self.position):
            return False
        news = self.attendant.news(self.position)
        for finding in news:
            self._tell("finding", f"step {step}", finding)
        back = treatment.treat(self.engine, self.checkpoints, self.recipe.doctor, self.position, news, self._finish_save)
        if back is None:
            return False
        self.event("rollback", back.said)
        self.live.note(back.said)
        self.live.restart()
        self.engine.load(back.path, back.state)
        self.position, self.verified = back.position, None
        self.saves.begun, self.saves.complete = None, back.position.step
        if self.recorder is not None:
            self.recorder.flush()
        self._open_segment()
        self._save(background=False)  # or a run that is killed now would meet the same batches again
        return True

    def _tell(self, kind: str, when: str, finding: Finding) -> None:
        self.event(kind, finding.verdict.en, finding=show.as_json_finding(finding))
        self.live.note(f"{when}: {show.one_line(finding)}")

    def _train(self, batch: Batch, rate: float) -> StepResult:
        step = self.position.step + 1
        if self.position.step != self.metered:
            return self.recording.train_step(step, batch, rate)
        result, ranks = self.engine.metered_step(batch, rate)
        text = memory_text(ranks)
        self.live.note(f"step {step}: {text}")
        if self.recorder is not None:
            self.recorder.event(step, "memory", text, ranks=ranks)
        self.recording.memory(step, ranks)
        return result

    def _judge(self, result: StepResult) -> None:
        if result.skipped is None:
            self.position.non_finite, self.saves.changed = 0, True
            return
        self.position.skipped += 1
        if result.skipped == LOSS_SCALE_OVERFLOW:
            self.saves.changed = True
        elif result.skipped != NOTHING_SUPERVISED:
            self.position.non_finite += 1
        self.event("skipped_step", f"step {self.position.step} skipped: {result.skipped}", loss_scale=result.loss_scale)
        self.live.note(f"step {self.position.step}: {result.skipped}; the update was skipped")

    def _show(self, result: StepResult, rate: float, seconds: float, waited: float) -> None:
        position = self.position
        speed = self.step_tokens / seconds
        mfu = position.share_of_peak(speed * self.flops / self.recipe.parallel.processes)
        values = figures(self.engine, position, result, rate, speed, mfu)
        if self.recipe.train.precision == "fp16":
            values["train/loss_scale"] = result.loss_scale
        self.attendant.add(position.step, self.recording.step(position.step, position.batch - 1, result, values, seconds, waited))
        left = (self.recipe.train.steps - position.step) * position.step_seconds / position.step
        self.live.update(
            Progress(
                step=position.step,
                total=self.recipe.train.steps,
                loss=result.loss,
                validation_loss=position.validation_loss,
                validation_ratio=position.validation_ratio,
                gradient_norm=result.gradient_norm,
                learning_rate=rate,
                tokens_per_second=speed,
                mfu=mfu,
                memory_bytes=int(values.get("memory/device_bytes", values["memory/resident_bytes"])),
                data_wait=waited / seconds,
                seconds_left=left,
            )
        )

    def _validate(self) -> None:
        position, start = self.position, time.perf_counter()
        self._doing("validates")
        self._record(self.retained.measure())
        loss, counted, measured = held_out_loss(self.recipe, self.engine, self.prepared)
        if not counted:  # nothing is held out
            return
        position.validation_loss = loss
        values = {"validation/loss": loss} | {f"validation/{name}": value for name, value in measured.items()}
        if self.recipe.train.of_tokens:
            values["validation/perplexity"] = perplexity(loss)
        if (recent := position.recent_loss) is not None:
            position.validation_ratio = values["validation/ratio"] = loss / recent
        self._record(values | {"time/validation": time.perf_counter() - start})
        self.live.note(f"step {position.step}: validation loss {loss:.4f} on {count(counted)} {self.recipe.train.counted}")

    def _sample(self) -> None:
        if self.prompts.due(self.position.step):
            self._doing("continues the prompts")
            for prompt, text in self.prompts.continued(self.engine):
                self.event("sample", prompt + text, prompt=prompt)

    def _save(self, background: bool) -> None:
        if self.saves.due(self.position):
            self._finish_save(wait=True)
            self.check_replicas()
            self._doing("saves a checkpoint")
            if self.recorder is not None:  # first, so that a run that goes on from this checkpoint has the curves up to it
                self.recorder.flush()
            self.saves.begin(self.position, background)
        if not background:
            self._finish_save(wait=True)

    def _finish_save(self, wait: bool) -> None:
        """Complete the checkpoint that was begun; without ``wait``, if it is written by now."""
        done = self.saves.finish(wait)
        if done is not None:
            said = f"saved {done.path.name} in {duration(done.seconds)}"
            self.event("checkpoint", said, seconds=done.seconds, stood_still=done.stood_still)
            self._record({"time/checkpoint": done.stood_still})

    def keep_what_was_begun(self) -> None:
        """Amid an error, which not all processes of a layout may have met, so that they cannot wait for each other."""
        if self.recipe.parallel.processes > 1:
            return
        try:
            self._finish_save(wait=True)
        except Exception as error:  # the one that it is amid goes on to whoever called
            self.live.note(str(error))

    def _stop_non_finite(self) -> None:
        self._save(background=False)
        raise RunStopped(
            f"{self.position.non_finite} steps in a row were not finite and were skipped; stopped after step "
            f"{self.position.step}. Checkpoint {self.saves.complete} holds the weights as they were before the first of them. "
            "Usual causes: a learning rate that is too high, fp16 where bf16 is at hand, damaged data. Train under another name "
            "with a lower train.optimizer.learning_rate, or delete the newest checkpoints to go back to earlier weights"
        )

    def event(self, kind: str, message: str, **data: Any) -> None:
        """Record what happened at this step."""
        if self.recorder is not None:
            self.recorder.event(self.position.step, kind, message, **data)

    def _record(self, values: dict[str, float]) -> None:
        self.attendant.add(self.position.step, values)
        if self.recorder is not None:
            self.recorder.scalars(self.position.step, values)

    def summary(self) -> dict[str, Any]:
        """The run in one flat object."""
        return summary(self.position, self.recipe, self.shape) | {"findings": self.attendant.said(self.folder / "metrics.sqlite")}

    def summary_rows(self) -> list[tuple[str, str]]:
        """The same for a person."""
        return summary_rows(self.position, self.summary(), self.recipe.train.steps, self.saves.complete)

"""What a person wants to know before the first step."""

from __future__ import annotations

from pathlib import Path

from danlu.data.prepared import Prepared
from danlu.model.counts import parameter_count, state_bytes
from danlu.model.shape import ModelShape
from danlu.plural import many
from danlu.recipe import Recipe, ignored
from danlu.train.position import Position
from danlu.train.room import no_disk
from danlu.watch import probes
from danlu.watch.format import bytes_text, count


def header_rows(
    recipe: Recipe, shape: ModelShape, prepared: Prepared, position: Position, device: str, folder: Path, warnings: list[str]
) -> list[tuple[str, str]]:
    """The model, the data, the machine, what is ignored and what may go wrong."""
    steps = recipe.train.steps
    tokens, total = prepared.train.tokens, recipe.train.global_batch * recipe.data.sequence_length * steps
    batch = f"{many(recipe.train.global_batch, 'sample')} of {recipe.data.sequence_length} tokens"
    if recipe.accumulation > 1:
        batch += f", in {recipe.accumulation} micro-batches of {recipe.micro_batch}"
    parameters = count(parameter_count(shape))
    peak = "" if position.peak is None else f", matmul peak {position.peak / 1e9:,.0f} GFLOP/s"
    rows = [
        ("model", f"{shape.family}, {parameters} parameters, vocabulary {shape.vocab_size:,}"),
        ("data", f"{count(tokens)} training tokens; {count(total)} to train on ({total / tokens:.2f} epochs)"),
        ("batch", batch),
        ("device", f"{device}, {recipe.train.precision}{peak}"),
        ("folder", str(folder)),
    ]
    parallel = recipe.parallel
    if parallel.processes > 1:
        degrees = {"data": parallel.data, "tensor": parallel.tensor, "pipeline": parallel.pipeline}
        layout = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
        api = "" if parallel.api == "fleet" else f", {parallel.api}"
        rows.insert(3, ("layout", f"{parallel.processes} processes: {layout}, ZeRO {parallel.zero_stage}{api}"))
    if position.step:
        rows.append(("resumed", f"after step {position.step} of {steps}"))
    rows += [("ignored", setting) for setting in ignored(recipe, device)]
    rows += [("warning", warning) for warning in warnings]
    if warning := no_disk(recipe, folder):
        rows.append(("warning", warning))
    size = state_bytes(shape)
    to_come = (
        recipe.checkpoint.keep + 1 - len(list((folder / "checkpoints").glob("step-*")))
    )  # one is written before one is deleted
    wanted = (size.weights + size.optimizer) * max(to_come, 1)
    if (free := probes.disk_free_bytes(folder)) < wanted:
        rows.append(("warning", f"{bytes_text(free)} of disk free, but the checkpoints to come need {bytes_text(wanted)}"))
    return rows

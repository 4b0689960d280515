"""The verb that plans a training without running it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import click

from danlu.cli import scaling
from danlu.cli.common import JSON, OVERRIDES, note, print_json
from danlu.errors import EXIT_FOUND


def _a_number(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):  # which no range holds against it
        raise click.BadParameter("nan is not a number")
    return value


def _place(_context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A file that can be written, said before the work and not after it."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise click.BadParameter(f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}")
    return path


@click.command()
@click.argument("what", metavar="RECIPE|RUN|config.json|PRESET")
@OVERRIDES
@click.option("--hardware", metavar="NAME|FILE", help="A device, such as h100-80gb, or its own YAML file.")
@click.option("--devices", type=click.IntRange(1, 1_000_000), help="Default: the recipe's processes, else one machine.")
@click.option(
    "--price",
    type=click.FloatRange(0, 1e6),
    callback=_a_number,
    help="US dollars for a device and hour. Default: the hardware file's, a public price of 2024 or 2025.",
)
@click.option("--sequence", type=click.IntRange(1, 1 << 30), help="Without a recipe: tokens a sample.")
@click.option("--global-batch", type=click.IntRange(1, 10_000_000), help="Without a recipe: samples a step.")
@click.option(
    "--tokens",
    type=click.FloatRange(1, 1e18),
    callback=_a_number,
    help="Without a recipe: tokens of the whole training, such as 15e12.",
)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="Without a recipe. Default: bf16.")
@click.option("--sweep", metavar="SETTING=A,B,C", help="Tabulate devices, hardware, sequence, global_batch or micro_batch.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    callback=_place,
    help="Write a page with the memory of every stage and the schedule.",
)
@click.option(
    "--timeline", type=click.Path(path_type=Path), callback=_place, help="Write the pipeline schedule of the best plan as SVG."
)
@click.option("--from-runs", multiple=True, metavar="RUN|GLOB", help="Predict loss and learning rate from runs of small sizes.")
@click.option("--coordinate-check", is_flag=True, help="Train a few steps at several widths: does what they change grow?")
@click.option("--verify", is_flag=True, help="Check the memory of the best plan: a step of the PyTorch engine without storage.")
@JSON
def plan(
    what: str,
    overrides: tuple[str, ...],
    hardware: str | None,
    devices: int | None,
    price: float | None,
    sweep: str | None,
    html: Path | None,
    timeline: Path | None,
    from_runs: tuple[str, ...],
    coordinate_check: bool,
    verify: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict memory, time and price, and choose the layout.

    Nothing is run, and no device is needed. Every layout and memory technique that danlu has is searched. The exit code is 0
    where something fits, else 4.

    \b
    Examples:
      danlu plan recipes/quickstart.yaml --hardware cpu
      danlu plan llama-3.1-8b --hardware h100-80gb --devices 8 --html plan.html
      danlu plan llama-3.1-8b --hardware h100-80gb --sweep devices=8,16,32
      danlu plan large.yaml --from-runs 'runs/small-*'
    """
    if from_runs or coordinate_check:
        _no_layout(
            {
                "hardware": hardware,
                "devices": devices,
                "price": price,
                "sweep": sweep,
                "html": html,
                "timeline": timeline,
                "verify": verify or None,
                **given,
            }
        )
        if from_runs and coordinate_check:
            raise click.UsageError("--from-runs and --coordinate-check answer two questions: ask one at a time")
        scaling.from_runs(what, overrides, from_runs, as_json) if from_runs else scaling.coordinates(what, overrides, as_json)
        return
    if sweep and (html or timeline or verify):
        raise click.UsageError("--sweep prints a table alone: leave out --html, --timeline and --verify, or the sweep")
    if hardware is None:
        raise click.UsageError("--hardware is missing: name a device, such as h100-80gb, or cpu for this machine's kind")
    from danlu.plan import outcome, verdict
    from danlu.plan import sweep as sweeps
    from danlu.plan.hardware import load
    from danlu.plan.target import Given, target

    device = load(hardware)
    if price is not None:
        device = device.model_copy(update={"price": price})
    request, own = target(what, overrides, Given(**given))
    number = devices or (own.devices if own is not None else device.devices_per_node)
    if sweep is not None:
        if verify:
            raise click.UsageError("--verify checks one plan, and --sweep makes many; give one of them")
        name, values = sweeps.parse(sweep)
        if name == "hardware" and price is not None:
            raise click.UsageError("--price is of one kind of device; leave it out where several are compared")
        rows = sweeps.sweep(request, device, number, name, values)
        if as_json:
            print_json(sweeps.as_json(name, rows))
        else:
            click.echo("\n".join(sweeps.lines(name, rows)))
        if not any(best for _, _, best in rows):
            click.get_current_context().exit(EXIT_FOUND)
        return
    found = outcome.plan(request, device.of(number), number, own)
    checked = _checked(found) if verify and found.chosen is not None else None
    if as_json:
        print_json(outcome.as_json(found) | ({} if checked is None else {"verified": [each.as_json() for each in checked]}))
    else:
        click.echo("\n".join(verdict.lines(found, shutil.get_terminal_size((100, 24)).columns)))
        if checked is not None:
            from danlu.plan.verify import table

            click.echo("\n" + table(checked))
    _write(found, html, timeline)
    if found.chosen is None:
        if verify:
            note("--verify: nothing fits, so that there is no plan to check")
        click.get_current_context().exit(EXIT_FOUND)


def _no_layout(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} plans a layout, which --from-runs and --coordinate-check do not")


def _checked(found: Any) -> Any:
    from danlu.errors import UserError
    from danlu.plan.verify import compare

    if found.request.shape is None:
        raise UserError("--verify: danlu builds no model from a config.json alone; give a recipe or a preset")
    return compare(found.chosen.job, found.request.shape)


def _write(found: Any, html: Path | None, timeline: Path | None) -> None:
    from danlu.files import write_text
    from danlu.plan import outcome, page
    from danlu.plan import timeline as pictures

    if timeline is not None and found.chosen is None:
        note("--timeline: nothing fits, so that there is no schedule to draw")
    elif timeline is not None:
        write_text(timeline, pictures.svg(*outcome.timeline(found.chosen)))
        note(f"wrote {timeline}")
    if html is not None:
        write_text(html, page.render(found))
        note(f"wrote {html}")

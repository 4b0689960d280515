"""Verbs that look at devices."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import JSON, Verbs, note, print_json


@click.group(name="hardware", cls=Verbs)
def hardware_group() -> None:
    """List devices, and measure this machine.

    \b
    Examples:
      danlu hardware list
      danlu hardware measure --output my.yaml
    """


@hardware_group.command(name="list")
@JSON
def hardware_list(as_json: bool) -> None:
    """The devices that are shipped: memory, rates, links and price.

    \b
    Example:
      danlu hardware list
    """
    from danlu.plan.hardware import load, names

    devices = [load(name) for name in names()]
    if as_json:
        print_json([device.model_dump(exclude={"measured"}) for device in devices])
        return
    click.echo(f"{'':<14}{'memory GB':>10}{'GB/s':>8}{'bf16 TFLOP/s':>14}{'fp32':>8}{'a machine':>11}{'$ an hour':>11}")
    for each in devices:
        half = (each.peak.bf16 or each.peak.fp32) / 1e12
        click.echo(
            f"{each.name:<14}{each.memory / 1e9:>10.1f}{each.bandwidth / 1e9:>8,.0f}{half:>14,.1f}"
            f"{each.peak.fp32 / 1e12:>8,.1f}{each.devices_per_node:>11}{each.price:>11.2f}"
        )


@hardware_group.command(name="measure")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("hardware.yaml"), show_default=True, help="File to write."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is a GPU.")
@click.option(
    "--processes", type=click.IntRange(1), multiple=True, help="How many at once; repeat it. Default: 1, 2 and 4, as cores allow."
)
@JSON
def measure(output: Path, device: str | None, processes: tuple[int, ...], as_json: bool) -> None:
    """Time this machine, for plans that fit it.

    Writes a file for `danlu plan --hardware FILE`: matrix products, attention, the operators between them, collectives
    between processes, and what calls cost; alone and with several processes at once. Takes about a minute for each number.

    \b
    Examples:
      danlu hardware measure --output my.yaml
      danlu hardware measure --device cpu --processes 1 --processes 2 --json
    """
    from danlu import measure as machine
    from danlu.errors import UserError

    if output.suffix not in {".yaml", ".yml"}:
        raise UserError(f"--output: {output} does not end in .yaml, by which the planner knows a file; name it so")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output: the folder of {output} does not exist; make it first")
    content = machine.measure(device or machine.device(), sorted(set(processes)) or None)
    machine.write(content, output)
    if as_json:
        print_json(content)
    else:
        rates = ", ".join(f"{precision} {rate / 1e9:,.0f} GFLOP/s" for precision, rate in content["peak"].items())
        click.echo(f"{content['name']}: {rates}; memory {content['bandwidth'] / 1e9:.0f} GB/s")
    note(f"wrote {output}; plan with it: danlu plan RECIPE --hardware {output}")

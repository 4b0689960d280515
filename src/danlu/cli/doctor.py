"""The verbs of the doctor."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu.cli.common import JSON, OVERRIDES, RECIPE, ROOT, RUN, DefaultVerbs, locate, note, print_json, run_folder
from danlu.errors import EXIT_FOUND, UserError

if TYPE_CHECKING:
    from danlu.doctor.diagnose import Diagnosis
    from danlu.doctor.show import Language

LANGUAGE = click.option(
    "--language", type=click.Choice(["en", "zh"]), help="Of the texts. Default: the environment's, else English."
)


class _DoctorVerbs(DefaultVerbs):
    default = "run"


@click.group(name="doctor", cls=_DoctorVerbs)
def doctor_group() -> None:
    """Name what is wrong with a run, and the way out.

    RUN is a run folder, finished or live, or a log of another program: a .csv or .parquet file with metrics. Settings that such a
    log does not hold can be given behind it. The exit code is 0 where nothing of warning or above is found, else 4.

    \b
    Examples:
      danlu doctor runs/quickstart
      danlu doctor log.csv learning_rate=3e-4 warmup_steps=100
      danlu doctor apply runs/quickstart --to calmer.yaml
      danlu doctor audit recipes/quickstart.yaml
      danlu doctor rules
    """


@doctor_group.command(name="run", hidden=True)
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|FILE")
@click.argument("settings", nargs=-1, metavar="[SETTING=VALUE]...")
@click.option("--all", "everything", is_flag=True, help="Also say which rules lack the data to judge, and which data.")
@LANGUAGE
@JSON
def diagnose_run(run: Path, settings: tuple[str, ...], everything: bool, language: str | None, as_json: bool) -> None:
    """Diagnose a run or a log.

    \b
    Examples:
      danlu doctor run runs/quickstart --all
      danlu doctor run log.csv learning_rate=3e-4 --json
    """
    from danlu.doctor import show
    from danlu.doctor.diagnose import diagnose
    from danlu.doctor.load import check_given, check_known, load

    facts = _facts(settings)
    check_given(facts)
    evidence = load(run, facts)
    check_known(run, evidence)
    diagnosis = diagnose(evidence)
    _print(diagnosis, str(run), show.lines(diagnosis, language_of(language), everything), as_json)


@doctor_group.command(name="apply")
@RUN
@click.option("--to", type=click.Path(path_type=Path), required=True, help="Recipe to write; the run's name becomes its stem.")
def doctor_apply(run: Path, to: Path) -> None:
    """Write the run's recipe with the changes that the findings ask for.

    The run stays as it is; the recipe is for a new one.

    \b
    Example:
      danlu doctor apply runs/quickstart --to calmer.yaml
    """
    from danlu import recipe as recipes
    from danlu.doctor.diagnose import diagnose
    from danlu.doctor.load import from_run
    from danlu.doctor.patch import changes, patched
    from danlu.files import why, write_text

    folder = run_folder(run)
    changed = changes(diagnose(from_run(folder)).findings)
    if not changed:
        click.echo("nothing to change: no finding of warning or above comes with a change of the recipe")
        return
    recipe = patched(folder.recipe_file, changed, to.stem)
    if to.exists():
        raise UserError(f"{to}: is there already; give another name with --to")
    try:
        write_text(to, recipes.dump(recipe))
    except OSError as error:
        raise UserError(f"{to}: cannot be written: {why(error)}; give another place with --to") from None
    for field, value in changed.items():
        click.echo(f"{field}: {json.dumps(value)}")
    click.echo(f"wrote {to}; train it with: danlu train {to}")


@doctor_group.command(name="audit")
@RECIPE
@OVERRIDES
@ROOT
@click.option("--all", "everything", is_flag=True, help="Also say which audits lack the data to judge, and which data.")
@click.option("--quick", is_flag=True, help="Only those that come ahead of every training, and how long they take.")
@LANGUAGE
@JSON
def doctor_audit(
    recipe: Path,
    overrides: tuple[str, ...],
    root: Path,
    everything: bool,
    quick: bool,
    language: str | None,
    as_json: bool,
) -> None:
    """Look at a recipe, its data and this machine before the first step.

    Data that is prepared in the run's folder is looked at; else the text that the recipe names. Nothing is written.

    \b
    Examples:
      danlu doctor audit recipes/quickstart.yaml
      danlu doctor audit runs/quickstart train.optimizer.learning_rate=1 --all
    """
    from danlu.auditing import material
    from danlu.doctor import show
    from danlu.doctor.audit.audit import AUDITS, audited, audited_at_start

    looked_at = material(*locate(recipe, overrides, root))
    start = time.perf_counter()
    diagnosis = (audited_at_start if quick else audited)(looked_at)
    if quick:
        note(f"{time.perf_counter() - start:.2f} s")
    _print(diagnosis, str(recipe), show.lines(diagnosis, language_of(language), everything, AUDITS), as_json)


@doctor_group.command(name="diff")
@click.argument("first", type=click.Path(path_type=Path), metavar="RUN_A")
@click.argument("second", type=click.Path(path_type=Path), metavar="RUN_B")
@LANGUAGE
@JSON
def doctor_diff(first: Path, second: Path, language: str | None, as_json: bool) -> None:
    """Say what differs between two runs, and where their curves part.

    Settings, data, environment, and the first step at which a signal differs at all and beyond its noise. Each may be a log of
    another program, too.

    \b
    Example:
      danlu doctor diff runs/quickstart runs/hot
    """
    from danlu.doctor.diff import show
    from danlu.doctor.diff.compare import compare, read

    found = compare(read(first), read(second))
    if as_json:
        print_json(show.as_json(found))
    else:
        click.echo("\n".join(show.lines(found, language_of(language))))


@doctor_group.command(name="rules")
@LANGUAGE
@JSON
def doctor_rules(language: str | None, as_json: bool) -> None:
    """List the rules: what each catches and needs.

    \b
    Example:
      danlu doctor rules
    """
    from danlu.doctor.rule import all_rules

    rules = sorted(all_rules(), key=lambda rule: rule.id)
    if as_json:
        print_json(
            [
                {
                    "rule": rule.id,
                    "catches": rule.catches._asdict(),
                    "needs": list(rule.needs),
                    "threshold": rule.threshold,
                    "origin": rule.origin,
                    "cost": rule.cost,
                    "severity": rule.severity.name.lower(),
                    "explains": sorted(rule.explains),
                }
                for rule in rules
            ]
        )
        return
    for rule in rules:
        click.echo(f"{rule.id:<26} {rule.catches.zh if language_of(language) == 'zh' else rule.catches.en}")


def _print(diagnosis: Diagnosis, name: str, lines: Iterable[str], as_json: bool) -> None:
    """Print it; the exit code says whether something of warning or above was found."""
    from danlu.doctor import show
    from danlu.doctor.finding import Severity

    if as_json:
        print_json(show.as_json(diagnosis, name))
    else:
        for line in lines:
            click.echo(line)
    if diagnosis.worst is not None and diagnosis.worst >= Severity.WARNING:
        click.get_current_context().exit(EXIT_FOUND)


def language_of(given: str | None) -> Language:
    """The language given, or the environment's."""
    if given is not None:
        return "zh" if given == "zh" else "en"
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "zh" if locale.lower().startswith("zh") else "en"


def _facts(settings: tuple[str, ...]) -> dict[str, Any]:
    """Settings from NAME=VALUE; what is a number becomes one."""
    facts: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UserError(f"setting {setting!r}: has no name=value; write it like learning_rate=3e-4")
        try:
            facts[name] = float(value)
        except ValueError:
            facts[name] = value
    return facts

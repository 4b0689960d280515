"""The command line: a verb parses, calls one function and prints. Rooms are imported inside the verbs: help is instant."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import os
import sys
from typing import NoReturn

import click

from danlu import __version__
from danlu.cli import (
    comparing,
    data,
    demo,
    doctor,
    hardware,
    launching,
    metrics,
    models,
    planning,
    pretrained,
    profile,
    quantizing,
    recipes,
    serving,
    trained,
    training,
    triton_server,
    watch,
    watch_files,
)
from danlu.cli.common import Verbs
from danlu.errors import EXIT_INTERRUPTED, EXIT_USAGE, DanluError


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="danlu")
def cli() -> None:
    """danlu (丹炉): train a language model from raw text, evaluate, sample and export it.

    One recipe (a YAML file) describes a run; one run folder holds all that came of it.
    Any field of the recipe can be overridden behind it: train.steps=200

    \b
    Examples:
      danlu run recipes/quickstart.yaml
      danlu generate runs/quickstart --prompt "import os"
    """


for _verb in (
    training.run,
    training.prepare,
    training.train,
    launching.launch,
    training.worker,
    trained.evaluate,
    trained.generate,
    pretrained.chat,
    trained.export,
    pretrained.import_model,
    quantizing.quantize,
    serving.serve,
    serving.bench_serve,
    triton_server.triton_group,
    data.data_group,
    watch.watch_group,
    watch.report,
    metrics.metrics,
    profile.profile,
    doctor.doctor_group,
    demo.demo,
    planning.plan,
    hardware.hardware_group,
    comparing.compare_engines,
    recipes.recipe_group,
    models.model_group,
):
    cli.add_command(_verb)
for _verb in (watch_files.export_run, watch_files.import_log):
    watch.watch_group.add_command(_verb)


def main() -> None:
    """Entry point: one line on stderr and an exit code for what a person can mend."""
    _prepare_streams()
    try:
        code = cli.main(prog_name="danlu", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        code = _fail(_usage(error), EXIT_USAGE)
    except DanluError as error:
        code = _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _fail("stopped at once; what was saved before is intact", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Who read the output is gone. What is still buffered goes nowhere, so that the interpreter does not stumble at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        from danlu.files import why

        # Stages say for themselves what fails in the middle; a place without permission is found when it is opened.
        code = EXIT_USAGE if isinstance(error, PermissionError) else 1
        _fail(": ".join(str(part) for part in (error.filename, why(error)) if part), code)
    _leave(code)


def _leave(code: int | None) -> NoReturn:
    """End the process; a rank of several without taking the interpreter down.

    Gloo's threads may still let go of tensors then, which ends a process by SIGABRT (pytorch/pytorch#179291), and its launcher
    would take a run that is complete for a failed one.
    """
    from danlu import heartbeat

    if not heartbeat.started():
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # who read it is gone
            stream.flush()
    os._exit(code or 0)


def _prepare_streams() -> None:
    """Print any text on any terminal: UTF-8 where Python fell back to ASCII, and a question mark for what an encoding lacks."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by the shell, as with `>&-`
            stream = open(os.devnull, "w")  # noqa: SIM115 - it stays open to the end
            setattr(sys, name, stream)
        ascii_only = codecs.lookup(stream.encoding).name == "ascii"
        stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="replace")


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    help_of = context.command_path if context is not None else "danlu"
    return f"{' '.join(error.format_message().split())} (see {help_of} --help)"


def _fail(line: str, code: int) -> int:
    click.echo(f"danlu: {line}", err=True)
    return code

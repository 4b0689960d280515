"""Verbs about NVIDIA's Triton Inference Server."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import Verbs, note

ENVIRONMENT = click.option(
    "--environment", type=click.Path(path_type=Path), default=Path(".tritonserver"), show_default=True, help="Where setup is."
)
PORT = click.IntRange(0, 65535)


@click.group(name="triton", cls=Verbs)
def triton_group() -> None:
    """Serve through NVIDIA Triton, without a container.

    \b
    Examples:
      danlu triton setup
      danlu triton export runs/quickstart models
      danlu triton serve models
    """


@triton_group.command()
@ENVIRONMENT
def setup(environment: Path) -> None:
    """Install tritonserver from PyPI, in a folder of its own.

    By pip, some 100 MB to load; for Linux on x86-64. danlu itself runs from the environment that this command runs in.

    \b
    Examples:
      danlu triton setup
      danlu triton setup --environment ~/tritonserver
    """
    from danlu.serve.triton_server.environment import set_up

    set_up(environment)
    click.echo(f"installed tritonserver in {environment}")


@triton_group.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="RUN|FOLDER")
@click.argument("repository", type=click.Path(path_type=Path), metavar="REPOSITORY")
@click.option("--name", help="What clients call the model. Default: the folder's name.")
@click.option("--keep-weights", is_flag=True, help="Do not make them 8-bit weights.")
@click.option("--cache-tokens", type=click.IntRange(64), default=32768, show_default=True, help="Room of the key/value cache.")
@click.option("--replace", is_flag=True, help="Overwrite a model of that name.")
def export(path: Path, repository: Path, name: str | None, keep_weights: bool, cache_tokens: int, replace: bool) -> None:
    """Add a model to a repository that tritonserver reads.

    A run's newest checkpoint or a folder in the Hugging Face layout, with 8-bit weights. It is there twice: NAME answers as a
    whole, over HTTP and gRPC; NAME_stream answers in pieces. Any tritonserver with danlu in its Python runs them.

    \b
    Examples:
      danlu triton export runs/quickstart models
      danlu triton export my-model models --name mine --keep-weights
    """
    from danlu.triton_export import add

    made = add(path, repository, name, keep_weights, cache_tokens, replace, note)
    click.echo(f"wrote {repository / made} and {repository / made}_stream; serve them with: danlu triton serve {repository}")


@triton_group.command()
@click.argument("repository", type=click.Path(path_type=Path), metavar="REPOSITORY")
@click.option("--port", type=PORT, default=8000, show_default=True, help="Of HTTP; 0: any that is free.")
@click.option("--grpc-port", type=PORT, default=8001, show_default=True, help="Of gRPC; 0: any that is free.")
@click.option("--metrics-port", type=PORT, default=8002, show_default=True, help="Of /metrics; 0: any that is free.")
@ENVIRONMENT
def serve(repository: Path, port: int, grpc_port: int, metrics_port: int, environment: Path) -> None:
    """Run tritonserver on a repository, on this machine alone.

    Triton knows no keys, so it listens on 127.0.0.1. Ctrl-C, or SIGTERM, lets running answers end.

    \b
    Examples:
      danlu triton serve models
      danlu triton serve models --port 0 --grpc-port 0 --metrics-port 0
    """
    from danlu.serve.triton_server.environment import server
    from danlu.serve.triton_server.process import Ports
    from danlu.serve.triton_server.process import serve as run

    run(server(environment), repository, Ports(port, grpc_port, metrics_port), lambda line: click.echo(f"triton: {line}"))

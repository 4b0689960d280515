"""Verbs that put a model to use for others."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.common import note


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="RUN|FOLDER")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need --api-key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--name", help="What clients call the model. Default: the folder's name.")
@click.option("--api-key", envvar="DANLU_API_KEY", help="Clients must send it. Also from DANLU_API_KEY.")
@click.option("--cache-tokens", type=click.IntRange(64), default=32768, show_default=True, help="Room of the key/value cache.")
@click.option("--running", type=click.IntRange(1), default=64, show_default=True, help="Answers made at the same time, at most.")
@click.option("--waiting", type=click.IntRange(1), default=256, show_default=True, help="Answers that may wait; more get a 429.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=600, show_default=True, help="Seconds of a request.")
@click.option("--device", default="cpu", show_default=True, help="cpu, or cuda.")
def serve(
    path: Path,
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    cache_tokens: int,
    running: int,
    waiting: int,
    timeout: float,
    device: str,
) -> None:
    """Answer requests over HTTP, as OpenAI's clients send them.

    The model is a run's newest checkpoint or a folder in the Hugging Face layout. Beside /v1/chat/completions and
    /v1/completions there are a page to try it at /, /health and /metrics. Ctrl-C, or SIGTERM, lets running answers end.

    \b
    Examples:
      danlu serve runs/quickstart
      danlu serve my-model --port 0 --api-key secret
    """
    from danlu import serving
    from danlu.serve.http.serve import Settings
    from danlu.serve.http.serve import serve as serve_http

    settings = Settings(host, port, api_key, cache_tokens, running, waiting, timeout, device)
    serve_http(serving.open_model(path, note, name), settings, lambda address: click.echo(f"serve: {address}"))

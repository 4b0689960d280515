"""Verbs that put a model to use for others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from danlu.cli.common import CACHE, JSON, note, print_json

if TYPE_CHECKING:
    from danlu.serve.executor import CacheType


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="RUN|FOLDER")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need --api-key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--name", help="What clients call the model. Default: the folder's name.")
@click.option("--api-key", envvar="DANLU_API_KEY", help="Clients must send it. Also from DANLU_API_KEY.")
@click.option("--cache-tokens", type=click.IntRange(64), default=32768, show_default=True, help="Room of the key/value cache.")
@CACHE
@click.option("--running", type=click.IntRange(1), default=64, show_default=True, help="Answers made at the same time, at most.")
@click.option("--waiting", type=click.IntRange(1), default=256, show_default=True, help="Answers that may wait; more get a 429.")
@click.option(
    "--timeout", type=click.FloatRange(0, 1e9, min_open=True), default=600, show_default=True, help="Seconds of a request."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, or cuda.")
@click.option("--threads", type=click.IntRange(1, 1024), help="That compute on a CPU. Default: one a core, or OMP_NUM_THREADS.")
def serve(
    path: Path,
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    cache_tokens: int,
    cache_dtype: CacheType,
    running: int,
    waiting: int,
    timeout: float,
    device: str,
    threads: int | None,
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
    from danlu.serve.load import load

    opened = serving.open_model(path, note, name)
    settings = Settings(host, port, api_key, running, waiting, timeout)
    serve_http(
        opened.model,
        lambda: load(opened.shape, opened.weights, opened.scheme, cache_tokens, device, cache_dtype, threads),
        settings,
        lambda address: click.echo(f"serve: {address}"),
    )


@click.command(name="bench-serve")
@click.argument("address")
@click.option("--model", help="Which of the server's. Default: its first.")
@click.option("--api-key", envvar="DANLU_API_KEY", help="Sent with every request. Also from DANLU_API_KEY.")
@click.option("--conversations", type=click.IntRange(1), default=32, show_default=True, help="How many.")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Of a conversation.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Conversations a second.")
@click.option("--system-words", type=click.IntRange(1), default=400, show_default=True, help="Of the prompt that all begin with.")
@click.option("--words", type=click.IntRange(1), default=30, show_default=True, help="Of a turn, on average.")
@click.option("--pause", type=click.FloatRange(0), default=1.0, show_default=True, help="Seconds between turns, on average.")
@click.option(
    "--timeout", type=click.FloatRange(0, 1e9, min_open=True), default=600, show_default=True, help="Seconds of a request."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of texts and times.")
@JSON
def bench_serve(
    address: str,
    model: str | None,
    api_key: str | None,
    conversations: int,
    turns: int,
    rate: float,
    system_words: int,
    words: int,
    pause: float,
    timeout: float,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a server under load.

    Any server with OpenAI's chat completions. Conversations begin at random (Poisson) with the same system prompt, and go on with
    turns and answers of mixed lengths. Prints times to the first token and tokens a second.

    \b
    Examples:
      danlu bench-serve http://127.0.0.1:8000
      danlu bench-serve http://127.0.0.1:8000/v1 --conversations 100 --rate 4 --json
    """
    from danlu.errors import EXIT_FOUND
    from danlu.serve.bench.client import Client
    from danlu.serve.bench.measure import measure
    from danlu.serve.bench.workload import Shape

    client = Client(address, api_key, timeout)
    shape = Shape(conversations, turns, rate, system_words, words, pause)
    found = measure(client, model or client.model(), shape, seed)
    if as_json:
        print_json(found)
    else:
        for name, value in found.items():
            if name != "reasons":
                click.echo(f"{name:28} {'not told' if value is None else f'{value:.4g}' if isinstance(value, float) else value}")
    for reason, times in found["reasons"].items():
        note(f"danlu: {times} x {reason}")
    if found["errors"]:
        click.get_current_context().exit(EXIT_FOUND)

"""From an opened model to a listening server."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import NamedTuple

from danlu.errors import UserError
from danlu.files import why
from danlu.serve.engine import Engine
from danlu.serve.executor import Executor
from danlu.serve.model import Model
from danlu.serve.worker import Worker

DRAIN_SECONDS = 30


class Settings(NamedTuple):
    """As `danlu serve` takes them."""

    host: str
    port: int
    api_key: str | None
    running: int
    waiting: int
    timeout: float


def serve(model: Model, load: Callable[[], Executor], settings: Settings, say: Callable[[str], None]) -> None:
    """Load and serve until SIGINT or SIGTERM, then let running answers end; ``say`` is told the address.

    UserError: the address cannot be used, is open to others without a key, or the packages are not installed.
    """
    try:
        import uvicorn

        from danlu.serve.http.app import Limits, application
    except ImportError:
        raise UserError("danlu serve needs starlette, uvicorn and jinja2; install danlu with its extra `serve`") from None
    if not settings.api_key and not _loopback(settings.host):
        raise UserError(f"--host {settings.host}: others could use the model; give a key with --api-key, or listen on 127.0.0.1")
    with _bound(settings.host, settings.port) as listening:
        engine = Engine(load(), running=settings.running)
        worker = Worker(engine, settings.waiting)
        app = application(model, worker, Limits(settings.api_key, seconds=settings.timeout))
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, timeout_graceful_shutdown=DRAIN_SECONDS, server_header=False
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        say(f"http://{host}:{listening.getsockname()[1]}/")
        uvicorn.Server(config).run(sockets=[listening])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise UserError(f"--host {host} --port {port}: cannot be served: {why(error)}; --port 0 is any that is free") from None
    return listening

"""Serve the live page on this machine alone."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from danlu.errors import UserError
from danlu.files import why
from danlu.watch.server.runs import Runs

HOST = "127.0.0.1"
PORT = 8267
"""Where the page is, unless another program, or another page, is there already."""


def serve(runs: Runs, diagnose: Callable[[Path], dict[str, Any]], port: int | None, say: Callable[[str], None]) -> None:
    """Serve until interrupted; ``say`` is told the address. Port 0 is any that is free; None is `PORT`, or any if it is taken.

    UserError: the port is taken, or the packages that it needs are not installed.
    """
    try:
        import uvicorn

        from danlu.watch.server.app import application
    except ImportError:
        raise UserError("the live page needs starlette and uvicorn; install danlu with its extra `watch`") from None
    with bound(port) as listening:
        say(f"http://{HOST}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            application(runs, diagnose), log_level="critical", access_log=False, timeout_graceful_shutdown=1, server_header=False
        )
        uvicorn.Server(config).run(sockets=[listening])


def bound(port: int | None) -> socket.socket:
    """A socket that listens: at the port, any that is free for 0, or `PORT` or else any for None."""
    for attempt in (PORT, 0) if port is None else (port,):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, attempt))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE and port is None and attempt:
                continue
            raise UserError(f"--port {port}: cannot be served: {why(error)}; give another, or 0 for any that is free") from None
        return listening
    raise AssertionError("unreachable: port 0 is always free")

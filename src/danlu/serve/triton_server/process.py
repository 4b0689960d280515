"""tritonserver as a process that ends with this one, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from danlu.errors import DanluError, UserError
from danlu.files import why
from danlu.serve.triton_server.environment import Server
from danlu.serve.triton_server.repository import names

HOST = "127.0.0.1"
"""Triton knows no keys: so it listens on this machine alone."""
POLL_SECONDS = 0.2
END_SECONDS = 40
"""Longer than tritonserver itself waits for answers to end."""
SHARED = Path("/dev/shm")
PR_SET_PDEATHSIG = 1


class Ports(NamedTuple):
    """0: any that is free."""

    http: int
    grpc: int
    metrics: int


def serve(server: Server, repository: Path, ports: Ports, say: Callable[[str], None]) -> None:
    """Run until SIGINT or SIGTERM. ``say`` is told the addresses when all models are ready.

    UserError: no repository, or a port is taken. DanluError: tritonserver does not start, or ends.
    """
    models, used = names(repository), _free(ports)
    with tempfile.TemporaryFile() as log, suppress(KeyboardInterrupt), _running(server, repository, used, log) as process:
        while not _ready(used.http):
            if process.poll() is not None:
                raise DanluError(f"tritonserver does not start: {_reason(log, process.returncode)}")
            time.sleep(POLL_SECONDS)
        say(f"http://{HOST}:{used.http}, grpc {HOST}:{used.grpc}, metrics http://{HOST}:{used.metrics}/metrics")
        say(f"models: {', '.join(models)}")
        process.wait()
        raise DanluError(f"tritonserver ended by itself: {_reason(log, process.returncode)}")


@contextmanager
def _running(server: Server, repository: Path, ports: Ports, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    prefix = f"danlu_{os.getpid()}_"
    command = [
        *server.command,
        f"--model-repository={repository.resolve()}",
        *(f"--{name}-address={HOST}" for name in ("http", "grpc", "metrics")),
        *(f"--{name}-port={port}" for name, port in ports._asdict().items()),
        "--allow-gpu-metrics=false",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
    ]
    # A session of its own: Ctrl-C comes here alone, and what it has started can be ended with it.
    process = subprocess.Popen(
        command,
        env=server.environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for left in SHARED.glob(f"{prefix}*"):
            left.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, before)


def _end_with_parent() -> None:
    """In the child: SIGTERM when its parent dies, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free(ports: Ports) -> Ports:
    """The ports, with a free one for each 0. UserError: one is taken."""
    held = []
    try:
        for name, port in ports._asdict().items():
            listening = socket.socket()
            held.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((HOST, port))
            except OSError as error:
                raise UserError(f"the {name} port {port}: cannot be served: {why(error)}; 0 is any that is free") from None
        return Ports(*(listening.getsockname()[1] for listening in held))
    finally:
        for listening in held:
            listening.close()


def _reason(log: IO[bytes], code: int) -> str:
    """The first that tritonserver said was wrong, or how it ended."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    wrong = (line.partition("] ")[2].strip('"') for line in lines if line[:1] in "EF" and "CudaDriverHelper" not in line)
    return next(filter(None, wrong), f"exit code {code}" if code >= 0 else f"signal {-code}").partition("\\n")[0]

"""A real tritonserver and its own clients. `make triton-test` installs them; without that they are not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from danlu import stages
from danlu.run_folder import RunFolder

ENVIRONMENT = os.environ.get("DANLU_TRITON", "")
CLIENT = Path(__file__).parents[2] / "benchmarks" / "triton_client.py"
PROMPTS = ["炉火 the", "quick", "brown fox", "🐉"]
pytestmark = pytest.mark.skipif(not ENVIRONMENT, reason="needs tritonserver: make triton-test")


@pytest.fixture(scope="module")
def addresses(trained_folder: tuple[RunFolder, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    from danlu.triton_export import add

    place = tmp_path_factory.mktemp("models")
    add(trained_folder[0].path, place, "tiny", True, 2048, False, print)
    ports = [each for name in ("--port", "--grpc-port", "--metrics-port") for each in (name, "0")]
    command = [sys.executable, "-m", "danlu", "triton", "serve", str(place), "--environment", ENVIRONMENT, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.match(r"triton: http://(\S+), grpc (\S+),", process.stdout.readline())
            assert found
            yield {"http": found[1], "grpc": found[2], "stream": found[2]}
        finally:
            process.terminate()
            assert process.wait(60) == 0


def ask(addresses: dict[str, str], protocol: str, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    task = {"protocol": protocol, "address": addresses[protocol], "model": "tiny", "clients": 4, "prompts": PROMPTS}
    command = [str(Path(ENVIRONMENT) / "bin/python"), str(CLIENT)]
    return subprocess.run(
        command, input=json.dumps({**task, "settings": settings}), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_answers_are_those_of_generate(addresses: dict[str, str], trained_folder: tuple[RunFolder, str], protocol: str) -> None:
    trained = stages.open_trained(trained_folder[0], print)
    settings = stages.sampling_settings(trained_folder[0].load_recipe(), {"temperature": 0, "max_tokens": 12})
    done = ask(addresses, protocol, {"temperature": 0, "max_tokens": 12})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["texts"] == ["".join(stages.generate(trained, prompt, settings)) for prompt in PROMPTS]


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_what_is_refused_says_why(addresses: dict[str, str], protocol: str) -> None:
    done = ask(addresses, protocol, {"temperature": -1})
    assert done.returncode == 1
    assert "sampling_parameters: temperature: Input should be greater than or equal to 0" in done.stderr

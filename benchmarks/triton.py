"""Tritonserver with eight clients beside one: the same prompts, greedy, in alternating rounds; and are the answers danlu's own?

    python benchmarks/triton.py --model FOLDER [--environment .tritonserver] [--json FILE]

FOLDER is a model in the Hugging Face layout. The answers over HTTP, gRPC and streams are held against `danlu generate` on the
folder with 8-bit weights that `danlu triton export` has written.
"""

from __future__ import annotations

if __name__ != "__main__":  # this folder is where its scripts look first for a package of this name, which torch asks for
    raise ModuleNotFoundError("benchmarks/triton.py is not the package triton", name="triton")

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

CLIENTS = 8
PROMPTS = [
    "The history of the steam engine begins",
    "Photosynthesis is the process by which",
    "When Maria opened the old wooden door,",
    "A good recipe for tomato soup needs",
    "The difference between TCP and UDP is",
    "In the year 1969, three astronauts",
    "To train a neural network you need",
    "The largest animal that ever lived",
    "Every morning the fisherman of the village",
    "A prime number is a number that",
    "The first rule of good writing is",
    "Between the two mountains there was",
    "import os",
    "Dear customer, we are sorry that",
    "The immune system protects the body",
    "Chess is a game in which",
]
DANLU = [sys.executable, "-m", "danlu"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--environment", type=Path, default=Path(".tritonserver"), help="What `danlu triton setup` made.")
    parser.add_argument("--new", type=int, default=64, help="Tokens of an answer, at most.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = {"max_tokens": options.new, "temperature": 0}
    with tempfile.TemporaryDirectory() as place:
        repository = Path(place) / "models"
        run("triton", "export", options.model, repository, "--name", "it")
        expected = generated(repository / "it_stream/1/model", options.new)
        with served(repository, options.environment) as (addresses, server):

            def ask(protocol: str, clients: int) -> dict[str, Any]:
                address = addresses["http" if protocol == "http" else "grpc"]
                task = {"protocol": protocol, "address": address, "model": "it", "clients": clients, "settings": settings}
                return client(options.environment, {**task, "prompts": PROMPTS})

            answers = {protocol: ask(protocol, CLIENTS)["texts"] for protocol in ("http", "grpc", "stream")}
            rates: dict[int, list[tuple[float, float]]] = {CLIENTS: [], 1: []}
            for _ in range(options.rounds):
                for clients, found in rates.items():
                    before = cpu_seconds(server)
                    made = ask("grpc", clients)
                    answers[f"grpc, {clients} clients"] = made["texts"]
                    found.append((sum(made["tokens"]) / made["seconds"], sum(made["tokens"]) / (cpu_seconds(server) - before)))
    for name, texts in answers.items():
        if texts != expected:
            raise SystemExit(f"{name}: answers differ from danlu generate")
    (batched, batched_cpu), (single, single_cpu) = (map(statistics.median, zip(*each, strict=True)) for each in rates.values())
    figures = {
        "batched_to_single": batched / single,
        "batched_tokens_per_second": batched,
        "single_tokens_per_second": single,
        "batched_to_single_per_cpu_second": batched_cpu / single_cpu,
    }
    for figure, value in figures.items():
        print(f"{figure:34} {value:.4g}")
    print(f"answers equal danlu generate: {', '.join(answers)}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def run(*arguments: object) -> str:
    """What danlu prints."""
    return subprocess.run([*DANLU, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def generated(folder: Path, new: int) -> list[str]:
    """The texts of `danlu generate`."""
    prompts = [each for prompt in PROMPTS for each in ("--prompt", prompt)]
    made = json.loads(run("generate", folder, *prompts, "--max-tokens", new, "--temperature", 0, "--json"))
    return [each["text"] for each in made]


@contextmanager
def served(repository: Path, environment: Path) -> Iterator[tuple[dict[str, str], psutil.Process]]:
    """A tritonserver on ports that are free: its addresses by protocol, and its process."""
    ports = [each for name in ("--port", "--grpc-port", "--metrics-port") for each in (name, "0")]
    command = [*DANLU, "triton", "serve", str(repository), "--environment", str(environment), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.match(r"triton: http://(\S+), grpc (\S+),", process.stdout.readline())
            if found is None:
                raise SystemExit("tritonserver does not start")
            yield {"http": found[1], "grpc": found[2]}, psutil.Process(process.pid)
        finally:
            process.terminate()


def cpu_seconds(server: psutil.Process) -> float:
    """Of the server and all that it has started: what other load on the machine does not change."""
    times = [each.cpu_times() for each in [server, *server.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def client(environment: Path, task: dict[str, Any]) -> dict[str, Any]:
    """What the client's own process finds."""
    command = [str(environment / "bin/python"), str(Path(__file__).with_name("triton_client.py"))]
    done = subprocess.run(command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()

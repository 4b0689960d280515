"""Asks a tritonserver by the official clients; run by benchmarks/triton.py with the Python that `danlu triton setup` made.

Reads {protocol, address, model, clients, settings, prompts} as JSON and prints {seconds, texts, reasons, tokens}. Of protocols,
http and grpc give whole answers, stream takes the pieces of the decoupled model over gRPC.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Answer = tuple[str, str, int]


def main() -> None:
    task = json.load(sys.stdin)
    ask = {"http": whole, "grpc": whole, "stream": streamed}[task["protocol"]]
    began = time.perf_counter()
    with ThreadPoolExecutor(task["clients"]) as pool:
        answers = list(pool.map(lambda prompt: ask(task, prompt), task["prompts"]))
    seconds = time.perf_counter() - began
    texts, reasons, tokens = zip(*answers, strict=True)
    print(json.dumps({"seconds": seconds, "texts": texts, "reasons": reasons, "tokens": tokens}))


def whole(task: dict[str, Any], prompt: str) -> Answer:
    """An answer by one call."""
    library = importlib.import_module(f"tritonclient.{task['protocol']}")
    with library.InferenceServerClient(task["address"]) as client:
        made = client.infer(task["model"], inputs(library, task, prompt, (1, 1)))
    return answer(made)


def streamed(task: dict[str, Any], prompt: str) -> Answer:
    """An answer put together from its pieces."""
    library = importlib.import_module("tritonclient.grpc")
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    pieces: list[Answer] = []
    with library.InferenceServerClient(task["address"]) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(task["model"] + "_stream", inputs(library, task, prompt, (1,)))
        while not pieces or not pieces[-1][1]:
            result, error = arrived.get(timeout=600)
            if error:
                raise error
            pieces.append(answer(result))
    return "".join(piece[0] for piece in pieces), pieces[-1][1], sum(piece[2] for piece in pieces)


def inputs(library: Any, task: dict[str, Any], prompt: str, shape: tuple[int, ...]) -> list[Any]:
    """The tensors of a request."""
    made = []
    for name, text in (("text_input", prompt), ("sampling_parameters", json.dumps(task["settings"]))):
        tensor = library.InferInput(name, list(shape), "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode()], object).reshape(shape))
        made.append(tensor)
    return made


def answer(result: Any) -> Answer:
    """Text, reason and tokens of a response."""
    text, reason, tokens = (result.as_numpy(name).item() for name in ("text_output", "finish_reason", "num_output_tokens"))
    return text.decode(), reason.decode(), tokens


if __name__ == "__main__":
    main()

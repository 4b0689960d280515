"""What tritonserver calls: the models behind the files that `danlu triton export` writes.

``triton_python_backend_utils`` exists in tritonserver's own process alone; it is kept as ``self.pb``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from danlu import serving
from danlu.errors import DanluError, UserError
from danlu.serve.engine import Engine
from danlu.serve.guide import Guides
from danlu.serve.http.bodies import Completion, read
from danlu.serve.load import load
from danlu.serve.sequence import Output, Sequence
from danlu.serve.triton_server.repository import STREAM, WEIGHTS
from danlu.serve.worker import Full, Worker

WAITING = 1024
"""Texts that may wait for the engine."""
AT_ONCE = 256
"""Texts for which the model of whole answers asks the engine at the same time."""
OUTPUTS = ("text_output", "finish_reason", "num_output_tokens")
LOOK = 8
"""Tokens after which it is asked whether the client is still there: a message to tritonserver."""
FIXED = ("model", "prompt", "n", "stream", "stream_options", "logprobs", "echo")
"""What `sampling_parameters` cannot say: it is said elsewhere, or has no place in the answer."""


class Streaming:
    """The engine. An answer comes in pieces as they are made, or in one where the input `stream` is false."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model that lies beside model.py."""
        import triton_python_backend_utils as pb

        self.pb, self.name = pb, args["model_name"].removesuffix(STREAM)
        folder = Path(args["model_repository"]) / args["model_version"] / WEIGHTS
        tokens = int(json.loads(args["model_config"])["parameters"]["cache_tokens"]["string_value"])
        try:
            opened = serving.open_model(folder, lambda line: print(line, file=sys.stderr), self.name)
            executor = load(opened.shape, opened.weights, opened.scheme, tokens, "cpu")
        except DanluError as error:
            raise pb.TritonModelException(str(error)) from None
        self.model = opened.model
        self.guides = Guides(self.model.tokenizer, executor.vocab_size, self.model.ends)
        self.worker = Worker(Engine(executor), WAITING)
        self.worker.start()

    def execute(self, requests: list[Any]) -> None:
        """Begin the requests; their answers come from the engine's thread."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._begin(request, sender)
            except UserError as error:
                _fail(self.pb, sender, str(error), self.pb.TritonError.INVALID_ARG)
            except Full:
                _fail(self.pb, sender, "too many requests wait already; try again later", self.pb.TritonError.UNAVAILABLE)

    def finalize(self) -> None:
        """The server ends."""
        self.worker.stop()

    def _begin(self, request: Any, sender: Any) -> None:
        [text] = _texts(self.pb, request, "text_input", [b""])
        [parameters] = _texts(self.pb, request, "sampling_parameters", [b"{}"])
        stream = self.pb.get_input_tensor_by_name(request, "stream")
        asked = _completion(self.name, text, parameters)
        tokens = self.model.prompt(str(asked.prompt))
        guide = None if asked.schema_to_follow is None else self.guides.make(asked.schema_to_follow)
        sequence = self.model.sequence(tokens, asked.sampling(asked.max_tokens, None, 0), guide)
        whole = stream is not None and not stream.as_numpy().item()
        self.worker.submit({sequence: _Answer(self.pb, sender, self.worker, sequence, whole)})


class _Answer:
    """Takes the outputs of one sequence and sends them."""

    def __init__(self, pb: Any, sender: Any, worker: Worker, sequence: Sequence, whole: bool) -> None:
        self.pb, self.sender, self.worker, self.sequence, self.whole = pb, sender, worker, sequence, whole
        self.text, self.tokens, self.outputs = "", 0, 0

    def __call__(self, output: Output) -> None:
        self.outputs += 1
        self.text += output.text
        self.tokens += output.token is not None
        if output.reason in ("error", "cancelled"):
            _fail(self.pb, self.sender, "the answer could not be finished", self.pb.TritonError.INTERNAL)
        elif output.reason:
            self._send(output.reason, self.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        elif self.outputs % LOOK == 0 and self.sender.is_cancelled():
            self.worker.cancel(self.sequence)
            self.sender.send(flags=self.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        elif self.text and not self.whole:
            self._send("", 0)
            self.text, self.tokens = "", 0

    def _send(self, reason: str, flags: int) -> None:
        self.sender.send(_response(self.pb, [self.text], [reason], [self.tokens], (1,)), flags=flags)


class Whole:
    """Answers as a whole. Asks the engine of the model beside it for each text of each request, all at the same time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Nothing is loaded."""
        import triton_python_backend_utils as pb

        self.pb, self.engine = pb, args["model_name"] + STREAM
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.room = threading.Semaphore(AT_ONCE)

    def execute(self, requests: list[Any]) -> None:
        """Begin the requests; while there is no room, those that come wait in tritonserver."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                texts = _texts(self.pb, request, "text_input", [])
                parameters = _texts(self.pb, request, "sampling_parameters", [b"{}"] * len(texts))
                answers = _Answers(self.pb, sender, len(texts))
            except UserError as error:
                _fail(self.pb, sender, str(error), self.pb.TritonError.INVALID_ARG)
                continue
            for at, (text, settings) in enumerate(zip(texts, parameters, strict=True)):
                self.room.acquire()
                self.pool.submit(self._ask, text, settings, partial(answers.put, at))

    def finalize(self) -> None:
        """The server ends; it has waited for all answers."""
        self.pool.shutdown()

    def _ask(self, text: bytes, parameters: bytes, put: Callable[[Any], None]) -> None:
        try:
            inputs = [
                self.pb.Tensor("text_input", np.array([text], object)),
                self.pb.Tensor("sampling_parameters", np.array([parameters], object)),
                self.pb.Tensor("stream", np.array([False])),
            ]
            asked = self.pb.InferenceRequest(model_name=self.engine, requested_output_names=list(OUTPUTS), inputs=inputs)
            # One response holds everything; a last one may hold nothing but its end.
            put(next(each for each in asked.exec(decoupled=True) if each.has_error() or each.output_tensors()))
        except Exception as error:  # whoever asked must hear of it, or waits forever
            put(self.pb.InferenceResponse(error=self.pb.TritonError(f"{self.engine}: {error}")))
        finally:
            self.room.release()


class _Answers:
    """Collects the answers to the texts of one request and sends them when all are there."""

    def __init__(self, pb: Any, sender: Any, texts: int) -> None:
        self.pb, self.sender, self.lock, self.left = pb, sender, threading.Lock(), texts
        self.responses: list[Any] = [None] * texts

    def put(self, at: int, response: Any) -> None:
        with self.lock:
            self.responses[at] = response
            self.left -= 1
            if self.left:
                return
        if failed := [each.error() for each in self.responses if each.has_error()]:
            _fail(self.pb, self.sender, failed[0].message(), failed[0].code())
            return
        found = [{tensor.name(): tensor.as_numpy().item() for tensor in each.output_tensors()} for each in self.responses]
        texts, reasons, tokens = ([each[name] for each in found] for name in OUTPUTS)
        response = _response(self.pb, texts, reasons, tokens, (len(found), 1))
        self.sender.send(response, flags=self.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _completion(name: str, text: bytes, parameters: bytes) -> Completion:
    """What is asked, checked as `danlu serve` checks it. UserError: it is not such a request."""
    try:
        prompt = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"text_input: not UTF-8 (at byte {error.start})") from None
    try:
        settings = json.loads(parameters)
    except (ValueError, RecursionError):
        raise UserError("sampling_parameters: not JSON") from None
    if not isinstance(settings, dict):
        raise UserError('sampling_parameters: not a JSON object; such as {"max_tokens": 32, "temperature": 0}')
    for field in FIXED:
        if field in settings:
            raise UserError(f"sampling_parameters: {field} is nothing that can be set here")
    try:
        return read(Completion, json.dumps({**settings, "model": name, "prompt": prompt}).encode())
    except UserError as error:
        raise UserError(f"sampling_parameters: {error}") from None


def _texts(pb: Any, request: Any, name: str, default: list[bytes]) -> list[bytes]:
    tensor = pb.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    return [each if isinstance(each, bytes) else str(each).encode() for each in tensor.as_numpy().reshape(-1)]


def _response(pb: Any, texts: list[Any], reasons: list[Any], tokens: list[int], shape: tuple[int, ...]) -> Any:
    def words(values: list[Any]) -> Any:
        return np.array([it if isinstance(it, bytes) else it.encode() for it in values], object).reshape(shape)

    return pb.InferenceResponse(
        [
            pb.Tensor("text_output", words(texts)),
            pb.Tensor("finish_reason", words(reasons)),
            pb.Tensor("num_output_tokens", np.array(tokens, np.uint32).reshape(shape)),
        ]
    )


def _fail(pb: Any, sender: Any, message: str, code: int) -> None:
    error = pb.InferenceResponse(error=pb.TritonError(message, code))
    sender.send(error, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

"""The routes. A request becomes sequences of the worker; their outputs come back through a queue of the request."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from danlu.errors import UserError
from danlu.serve.guide import Guide, Guides
from danlu.serve.http import page
from danlu.serve.http.answers import Answer, error
from danlu.serve.http.bodies import Chat, Completion, read
from danlu.serve.http.metrics import Metrics
from danlu.serve.model import Model
from danlu.serve.sequence import Output, Sequence
from danlu.serve.worker import Full, Worker

BODY_BYTES = 8 << 20


@dataclass(frozen=True)
class Limits:
    """What one server takes on."""

    api_key: str | None = None
    choices: int = 64
    """Sequences of one request."""
    seconds: float = 600.0
    """A request that takes longer is ended."""


class _Ask:
    """Sequences of one request and the queue in which their outputs arrive, as (number, output)."""

    def __init__(self, worker: Worker, sequences: list[Sequence]) -> None:
        self.worker, self.sequences = worker, sequences
        self.queue: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(number: int, output: Output) -> None:
            loop.call_soon_threadsafe(self.queue.put_nowait, (number, output))

        self.callbacks = {sequence: partial(deliver, number) for number, sequence in enumerate(sequences)}

    def start(self) -> None:
        """Full, UserError: see `Worker.submit`."""
        self.worker.submit(self.callbacks)

    async def outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Until the last one; all are cancelled if nobody listens any more."""
        left = len(self.sequences)
        try:
            while left:
                number, output = await self.queue.get()
                left -= output.reason is not None
                yield number, output
        finally:
            if left:
                for sequence in self.sequences:
                    self.worker.cancel(sequence)


def application(model: Model, worker: Worker, limits: Limits) -> Starlette:
    """The server of one model."""
    metrics = Metrics(worker.engine)
    makes_guides = Guides(model.tokenizer, worker.engine.executor.vocab_size, model.ends)

    async def completions(request: Request) -> Response:
        body = read(Completion, await _body(request, model, limits))
        _same(body.model, model)
        prompts = _prompts(body.prompt, model)
        asked = [(tokens, number) for tokens in prompts for number in range(_few(body.n, len(prompts), limits))]
        guides = await guided(body, len(asked))
        sequences = [
            model.sequence(tokens, body.sampling(body.max_tokens, body.logprobs, number), guide)
            for (tokens, number), guide in zip(asked, guides, strict=True)
        ]
        answer = Answer(model, False, sum(map(len, prompts)))
        return await respond(request, answer, sequences, body.stream, body.with_usage)

    async def chat(request: Request) -> Response:
        body = read(Chat, await _body(request, model, limits))
        _same(body.model, model)
        tokens = await run_in_threadpool(model.conversation, [message.plain() for message in body.messages])
        most = body.max_completion_tokens or body.max_tokens or worker.engine.limit
        logprobs = body.top_logprobs if body.logprobs else None
        guides = await guided(body, body.n)
        sequences = [model.sequence(tokens, body.sampling(most, logprobs, number), guide) for number, guide in enumerate(guides)]
        return await respond(request, Answer(model, True, len(tokens)), sequences, body.stream, body.with_usage)

    async def guided(body: Completion | Chat, answers: int) -> list[Guide | None]:
        schema = body.schema_to_follow
        if schema is None:
            return [None] * answers
        guide = await run_in_threadpool(makes_guides.make, schema)
        return [guide, *(guide.copy() for _ in range(answers - 1))]

    async def respond(request: Request, answer: Answer, sequences: list[Sequence], stream: bool, usage: bool) -> Response:
        began = time.monotonic()
        ask = _Ask(worker, sequences)
        try:
            ask.start()
        except Full:
            metrics.refused += 1
            raise HTTPException(429, "too many requests wait already; try again later", {"Retry-After": "1"}) from None

        async def outputs() -> AsyncGenerator[tuple[int, Output], None]:
            first = True
            async with asyncio.timeout(limits.seconds), contextlib.aclosing(ask.outputs()) as source:
                async for number, output in source:
                    if first:
                        metrics.first.observe(time.monotonic() - began)
                        first = False
                    answer.count(output)
                    yield number, output
            answer.cached = sum(sequence.cached for sequence in sequences)
            metrics.whole.observe(time.monotonic() - began)

        if stream:
            return StreamingResponse(_events(answer, outputs(), usage), media_type="text/event-stream")
        collecting = asyncio.ensure_future(_collected(outputs(), len(sequences)))
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise ClientDisconnect
            try:
                choices = collecting.result()
            except TimeoutError:
                raise HTTPException(503, f"the answer took longer than {limits.seconds:g} s") from None
            if any(outputs[-1].reason in ("error", "cancelled") for outputs in choices):
                raise HTTPException(503, "the server could not finish the answer; it is ending, or an error is in its log")
            return JSONResponse(answer.whole(choices))
        finally:
            collecting.cancel()
            leaving.cancel()

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(model)]})

    async def one_model(request: Request) -> Response:
        _same(request.path_params["name"], model)
        return JSONResponse(_card(model))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "model": model.name})

    async def metrics_text(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        await run_in_threadpool(worker.stop)

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        Route("/health", health),
        Route("/metrics", metrics_text),
        *page.ROUTES,
    ]
    refusals: Any = {UserError: _refused, HTTPException: _refused, ClientDisconnect: _gone}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=refusals)


async def _body(request: Request, model: Model, limits: Limits) -> bytes:
    """The bytes of a request that may ask. HTTPException: who asks does not know the key, or the body is not for us."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if limits.api_key and not hmac.compare_digest(given.encode(), limits.api_key.encode()):
        raise HTTPException(401, "the API key is missing or wrong")
    # Browsers let any page send a form or plain text here, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(400, "content-type: must be application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {BODY_BYTES >> 20} MiB")
    return bytes(body)


def _same(name: str, model: Model) -> None:
    if name != model.name:
        raise HTTPException(404, f"model: there is no {name!r} here; the model is {model.name!r}")


def _prompts(prompt: str | list[str] | list[int] | list[list[int]], model: Model) -> list[list[int]]:
    if not prompt:
        return [model.prompt("")]
    if isinstance(prompt, str):
        return [model.prompt(prompt)]
    if numbers := [each for each in prompt if isinstance(each, int)]:
        return [numbers]
    return [model.prompt(each) if isinstance(each, str) else each for each in prompt if not isinstance(each, int)]


def _few(n: int, prompts: int, limits: Limits) -> int:
    if n * prompts > limits.choices:
        raise UserError(f"prompt: {prompts} of them with n = {n} are more than {limits.choices} answers; ask in parts")
    return n


async def _collected(outputs: AsyncGenerator[tuple[int, Output], None], choices: int) -> list[list[Output]]:
    made: list[list[Output]] = [[] for _ in range(choices)]
    async with contextlib.aclosing(outputs) as source:
        async for number, output in source:
            made[number].append(output)
    return made


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(answer: Answer, outputs: AsyncGenerator[tuple[int, Output], None], usage: bool) -> AsyncIterator[str]:
    begun = set()
    try:
        async with contextlib.aclosing(outputs) as source:
            async for number, output in source:
                if answer.chat and number not in begun:
                    begun.add(number)
                    yield _event(answer.first(number))
                if output.reason in ("error", "cancelled"):
                    yield _event(error("the server could not finish the answer", 503))
                elif output.text or output.reason or output.logprob is not None:
                    yield _event(answer.chunk(number, output))
        if usage:
            yield _event(answer.last())
    except TimeoutError:
        yield _event(error("the answer took too long", 503))
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _card(model: Model) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "danlu"}


async def _refused(_: Request, cause: Exception) -> Response:
    status = cause.status_code if isinstance(cause, HTTPException) else 400
    message = cause.detail if isinstance(cause, HTTPException) else str(cause)
    return JSONResponse(error(message, status), status, headers=getattr(cause, "headers", None))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)

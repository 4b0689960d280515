"""The routes of the live page. All of them only read; what they are asked is checked before anything is looked up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from danlu.errors import UserError
from danlu.watch import assets, pictures
from danlu.watch.answers import Answers
from danlu.watch.axes import AXES
from danlu.watch.facts import collect
from danlu.watch.server.feed import Feed
from danlu.watch.server.health import Health
from danlu.watch.server.runs import Run, Runs
from danlu.watch.signals import Signals

HOSTS = ["127.0.0.1", "localhost"]
"""Names under which the page may be asked for: a foreign name that leads here (DNS rebinding) is turned away."""
NAMES, POINTS = 64, 8000
"""Signals of one question, and points of one curve, at most."""
HEADERS = {
    "Content-Security-Policy": assets.POLICY.format(script="'self'", style="'self'", connect="'self'")
    + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _Guarded:
    """Puts the headers above on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.lower().encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        await self.app(scope, receive, with_headers)


def application(runs: Runs, diagnose: Callable[[Path], dict[str, Any]]) -> Starlette:
    """The page over these runs. ``diagnose`` says what is wrong with a run folder, as data for JSON."""
    signals = Signals()
    answers, feed, health = Answers(signals), Feed(runs), Health(diagnose)

    async def page(_: Request) -> Response:
        return Response(assets.live_page(), media_type="text/html")

    async def script(_: Request) -> Response:
        return Response(assets.script(assets.SERVER), media_type="text/javascript")

    async def style(_: Request) -> Response:
        return Response(assets.style(), media_type="text/css")

    async def listed(_: Request) -> Response:
        return await _answer(lambda: {"runs": [run.state() for run in runs.all(0.0)], "now": time.time()})

    async def facts(request: Request) -> Response:
        run = _run(runs, request)
        return await _answer(
            lambda: {
                **collect(run.folder),
                "id": run.id,
                "axes": answers.axes(run.metrics) if run.metrics.is_file() else {},
            }
        )

    async def names(request: Request) -> Response:
        found = _chosen(runs, request)
        return await _answer(
            lambda: {
                "names": {name: answers.names(path) for name, path in found.items()},
                "axes": {name: list(answers.axes(path)) for name, path in found.items()},
            }
        )

    async def newest(request: Request) -> Response:
        run = _run(runs, request)
        return await _answer(lambda: answers.newest(run.metrics, request.query_params.getlist("name")[:NAMES]))

    async def curves(request: Request) -> Response:
        asked = request.query_params.getlist("name")
        if not asked or len(asked) > NAMES:
            raise HTTPException(400, f"name: give 1 to {NAMES} of them")
        axis = request.query_params.get("axis", "step")
        if axis not in AXES:
            raise HTTPException(400, f"axis: is one of {', '.join(AXES)}")
        points, within = int(_number(request, "points", 2000)), _within(request)
        if not 4 <= points <= POINTS:
            raise HTTPException(400, f"points: give 4 to {POINTS}")
        logarithmic = request.query_params.get("log") == "1"
        chosen = _chosen(runs, request)
        return await _answer(lambda: {"curves": answers.curves(chosen, asked, axis, within, points, logarithmic)})

    async def layers(request: Request) -> Response:
        run, kind = _run(runs, request), request.query_params.get("kind", "")
        return await _answer(lambda: pictures.layers(signals, run.metrics, kind))

    async def histograms(request: Request) -> Response:
        run, name = _run(runs, request), request.query_params.get("name", "")
        return await _answer(lambda: pictures.histograms(run.metrics, name))

    async def doctor(request: Request) -> Response:
        run = _run(runs, request)
        return await _answer(lambda: health.of(run))

    async def live(request: Request) -> Response:
        return StreamingResponse(feed.events(request.headers.get("last-event-id", "")), media_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(feed.watch())
        yield
        watching.cancel()

    routes = [
        Route("/", page),
        Route("/page.js", script),
        Route("/page.css", style),
        *(
            Route(f"/api/{name}", endpoint)
            for name, endpoint in [
                ("runs", listed),
                ("run", facts),
                ("names", names),
                ("newest", newest),
                ("curves", curves),
                ("layers", layers),
                ("histograms", histograms),
                ("doctor", doctor),
                ("live", live),
            ]
        ),
    ]
    middleware = [
        Middleware(_Guarded),
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1),
    ]
    return Starlette(routes=routes, lifespan=lifespan, middleware=middleware)


async def _answer(make: Callable[[], Any]) -> Response:
    """What `make` returns as JSON, made in a thread; a run that cannot be read now is an answer of its own."""
    try:
        text = await run_in_threadpool(lambda: json.dumps(make(), allow_nan=False, separators=(",", ":"), default=str))
    except UserError as error:
        return Response(json.dumps({"error": str(error)}), 503, media_type="application/json")
    return Response(text, media_type="application/json")


def _run(runs: Runs, request: Request) -> Run:
    run = runs.get(request.query_params.get("run", ""))
    if run is None:
        raise HTTPException(404, "run: there is none of this name")
    return run


def _chosen(runs: Runs, request: Request) -> dict[str, Path]:
    """The metrics of the runs that are named; those that are not known, or have none yet, are left out."""
    asked = set(request.query_params.getlist("run"))
    return {run.id: run.metrics for run in runs.all() if run.id in asked and run.metrics.is_file()}


def _within(request: Request) -> tuple[float, float] | None:
    if "from" not in request.query_params and "to" not in request.query_params:
        return None
    low, high = _number(request, "from", -math.inf), _number(request, "to", math.inf)
    if not low <= high:
        raise HTTPException(400, "from: must not be beyond to")
    return low, high


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, f"{name}: is no number")
    return value

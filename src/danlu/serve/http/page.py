"""The page at / on which a person tries the model: one file, no other host."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript"), "/page.css": ("page.css", "text/css")}


async def _file(request: Request) -> Response:
    name, kind = _FILES[request.url.path]
    text = resources.files("danlu.serve.http").joinpath("site", name).read_text(encoding="utf-8")
    return Response(text, media_type=kind, headers=_HEADERS)


ROUTES = [Route(path, _file) for path in _FILES]

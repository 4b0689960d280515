"""The page that people look at, put together from its parts: with a run's data in it, or asking the server that sent it."""

from __future__ import annotations

import html
import json
import re
from importlib import resources
from typing import Any

SCRIPTS = ("words", "format", "place", "axes", "{source}", "chart", "charts", "picture", "health", "panels", "page")
"""Parts of the page's script, in this order one script; `source` is where data comes from: EMBEDDED or SERVER."""
EMBEDDED, SERVER = "embedded", "server"
POLICY = "default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; img-src data:"
_FOLDER = resources.files("danlu.watch")


def page(title: str, data: dict[str, Any]) -> str:
    """One file that opens without a network: everything in it, the data too."""
    # With "<" escaped, no text of the run, however hostile, can end the script element that holds it.
    payload = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    policy = POLICY.format(script="'unsafe-inline'", style="'unsafe-inline'", connect="'none'")
    return _filled(
        title=html.escape(title),
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        style=f"<style>{style()}</style>",
        data=payload,
        script=f"<script>{script(EMBEDDED)}</script>",
    )


def live_page() -> str:
    """The page that fetches its parts and its data from where it came from."""
    return _filled(
        title="runs",
        policy="",
        style='<link rel="stylesheet" href="page.css">',
        data="null",
        script='<script src="page.js"></script>',
    )


def script(source: str) -> str:
    """All of the page's script, with the library that draws its charts; data comes from EMBEDDED or SERVER."""
    return _text("vendor/uPlot.iife.min.js") + "\n".join(_text(f"page/{part.format(source=source)}.js") for part in SCRIPTS)


def style() -> str:
    """All of the page's style."""
    return _text("vendor/uPlot.min.css") + _text("page/style.css")


def _filled(**parts: str) -> str:
    return re.sub(r"\{\{(title|policy|style|data|script)\}\}", lambda match: parts[match[1]], _text("page/page.html"))


def _text(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")

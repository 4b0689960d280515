"""The live page in a headless Chromium: first paint and zoom with a million points, the delay of a new step, foreign requests.

The store holds a million steps of eight signals. The server is started anew for every first paint, so that nothing is in its
memory. Times are those that a person waits: from the address to a loss curve that is drawn, from a zoom to its full detail, and
from the call that records a step to the page that shows it.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, Request, sync_playwright

from danlu.watch import store
from danlu.watch.store import Recorder

STEPS = 1_000_000
SIGNALS = [
    *("train/loss", "train/gradient_norm", "train/learning_rate", "train/tokens_per_second", "train/mfu"),
    *("time/step", "time/data_wait", "memory/resident_bytes"),
]
TRIES = 5


def long_run(folder: Path) -> None:
    """A finished run of a million steps."""
    folder.mkdir()
    metrics = folder / "metrics.sqlite"
    with Recorder.open(metrics) as recorder:
        recorder.start_segment(1, {"steps": STEPS, "tokens_per_step": 4096, "flops_per_step": 1e12})
        recorder.scalars(1, dict.fromkeys(SIGNALS, 8.0))
        recorder.event(STEPS, "finished", "all steps done")
    random, steps = np.random.default_rng(0), np.arange(1, STEPS + 1)
    began = time.time()
    with sqlite3.connect(metrics) as connection:  # what the recorder would have written, faster
        connection.execute("DELETE FROM steps")
        connection.executemany("INSERT INTO steps VALUES (1, ?, ?)", ((step, began + 0.1 * step) for step in steps.tolist()))
        connection.execute('DELETE FROM "values"')
        for number, _ in connection.execute("SELECT id, name FROM names ORDER BY id").fetchall():
            values = (2 + 6 * np.exp(-steps / 1e5) + 0.1 * random.standard_normal(STEPS)).tolist()
            rows = ((number, step, value) for step, value in zip(steps.tolist(), values, strict=True))
            connection.executemany('INSERT INTO "values" VALUES (?, 1, ?, ?)', rows)
    connection.close()
    assert len(store.series(metrics, "train/loss")[0]) == STEPS


@contextmanager
def served(*folders: Path) -> Iterator[str]:
    """The address of a fresh `danlu watch`."""
    command = [sys.executable, "-m", "danlu", "watch", *map(str, folders), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def opened(browser: Browser, foreign: list[str], address: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 900})

    def check(request: Request) -> None:
        if not request.url.startswith((address, "data:")):
            foreign.append(request.url)

    page.on("request", check)
    page.goto(address)
    return page


def first_paints(browser: Browser, folder: Path, foreign: list[str]) -> list[float]:
    """Milliseconds from the address to the loss curve, with a server that has read nothing yet."""
    found = []
    for _ in range(TRIES):
        with served(folder) as address:
            page = opened(browser, foreign, address)
            until(lambda page=page: page.evaluate(FIRST_PAINT))
            found.append(page.evaluate(FIRST_PAINT))
            page.close()
    return found


FIRST_PAINT = "typeof charts === 'object' && charts.charts.length ? charts.charts[0].drawnAt : 0"
IN_MEMORY = """charts.charts.filter((one) => one.inSight).every((one) => one.found && !one.loading
  && !Object.values(one.found).some((runs) => Object.values(runs).some((curve) => curve.coarse)))"""
ZOOM = """async ([low, high]) => {
  const chart = charts.charts[0], began = performance.now();
  const detail = () => chart.found["train/loss"][page.focus()].inside;
  const before = chart.found;
  page.zoomed([low, high]);
  while (chart.found === before || chart.stale || chart.loading) await new Promise((done) => setTimeout(done, 1));
  return [performance.now() - began, detail()];
}"""


def zooms(browser: Browser, folder: Path, foreign: list[str]) -> list[float]:
    """Milliseconds from a zoom to its full detail, once the server has read the signals."""
    with served(folder) as address:
        page = opened(browser, foreign, address)
        page.wait_for_selector(".chart[data-drawn]", timeout=120_000)
        until(lambda: page.evaluate(IN_MEMORY))
        found = []
        for low, high in [(1, STEPS), (200_000, 700_000), (300_000, 301_000), (1, 999_000), (500_000, 900_000)]:
            took, inside = page.evaluate(ZOOM, [low, high])
            assert inside == high - low + 1, inside
            found.append(took)
            page.wait_for_timeout(700)
        page.close()
    return found


def live_delays(browser: Browser, folder: Path, foreign: list[str]) -> list[float]:
    """Seconds from the call that records a step to the page that has drawn it."""
    folder.mkdir()
    found = []
    with Recorder.open(folder / "metrics.sqlite") as recorder, served(folder) as address:
        recorder.start_segment(1, {"steps": 1000})
        for step in range(1, 21):
            recorder.scalars(step, {"train/loss": 1.0 / step})
        recorder.flush()
        page = opened(browser, foreign, address)
        page.wait_for_selector(".chart[data-drawn]")
        for step in range(21, 21 + 4 * TRIES):
            time.sleep(0.37)  # at all phases of the recorder's and the server's own pace
            began = time.monotonic()
            recorder.scalars(step, {"train/loss": 1.0 / step})
            until(lambda step=step: page.evaluate("charts.charts[0].drawn[0].xs.at(-1)") == step)
            found.append(time.monotonic() - began)
        page.close()
    return found


def until(true) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 180
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def measure(scratch: Path) -> tuple[dict[str, list[float]], int]:
    """All tries of each figure, and the requests to other hosts."""
    foreign: list[str] = []
    long_run(scratch / "long")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = {
            "first_paint_ms_1m": first_paints(browser, scratch / "long", foreign),
            "zoom_ms_1m": zooms(browser, scratch / "long", foreign),
            "live_delay_s": live_delays(browser, scratch / "live", foreign),
        }
        browser.close()
    return found, len(foreign)

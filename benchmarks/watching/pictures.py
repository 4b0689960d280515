"""The pictures in docs/: the report of a run, its live page, and two runs side by side, photographed in a headless Chromium.

Usage: python benchmarks/watching/pictures.py RUN OTHER [--to docs]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.watching.page import served, until

SETTLED = "charts.charts.filter((one) => one.inSight).every((one) => one.found && !one.loading)"


def take(page: Page, address: str, to: Path) -> None:
    page.goto(address)
    page.wait_for_selector(".chart[data-drawn]")
    until(lambda: page.evaluate(SETTLED))
    page.screenshot(path=to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--to", type=Path, default=Path("docs"))
    given = parser.parse_args()
    both = {"run": [run.name for run in (given.run, given.other)], "focus": given.run.name}
    with sync_playwright() as driver, served(given.run, given.other) as address:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        bright = browser.new_page(viewport={"width": 1280, "height": 1060}, locale="en", color_scheme="light")
        take(bright, f"{address}#{urlencode(both | {'run': given.run.name})}", given.to / "watch.png")
        dark = browser.new_page(viewport={"width": 1280, "height": 960}, locale="zh-CN", color_scheme="dark")
        take(dark, f"{address}#{urlencode(both | {'x': 'tokens'}, doseq=True)}", given.to / "watch-compare.png")
        report = browser.new_page(viewport={"width": 1200, "height": 1110}, locale="en", color_scheme="light")
        take(report, (given.run / "report.html").resolve().as_uri(), given.to / "report.png")
        browser.close()


if __name__ == "__main__":
    main()

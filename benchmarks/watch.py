"""Watching: what recording takes of a step on both engines, and the live page at a million points in Chromium.

    recording_share                  of a step's processor time at the recipe's defaults without histograms: the engine with more
    recording_share_with_histograms  with them
    first_paint_ms_1m                from the address to the loss curve, with a server that has read nothing yet
    zoom_ms_1m                       from a zoom to its full detail, once the server has read the signals
    live_delay_s                     from the call that records a step to the page that shows it
    foreign_requests                 to any other host

Times are the worst of several tries; medians, and the shares of each engine, stand beside them.

Usage: python benchmarks/watch.py [--only recording|page] [--rounds 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.watching import page

RECORDING = Path(__file__).resolve().parent / "watching" / "recording.py"
SHARES = ("recording_share", "recording_share_with_histograms")


def recording(scratch: Path, rounds: int) -> dict[str, float]:
    """Each engine in a process of its own."""
    found: dict[str, float] = {}
    for engine in ("torch", "paddle"):
        result = scratch / f"{engine}.json"
        command = [sys.executable, str(RECORDING), "--engine", engine]
        subprocess.run([*command, "--rounds", str(rounds), "--json", str(result)], check=True)
        shares = json.loads(result.read_text())
        found |= {f"{name}_{engine}": shares[name] for name in SHARES}
    return {name: max(found[f"{name}_torch"], found[f"{name}_paddle"]) for name in SHARES} | found


def of_the_page(scratch: Path) -> dict[str, float]:
    tries, foreign = page.measure(scratch)
    worst = {name: round(max(each), 3) for name, each in tries.items()}
    medians = {f"{name}_median": round(statistics.median(each), 3) for name, each in tries.items()}
    return worst | {"foreign_requests": foreign} | medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["recording", "page"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-") as scratch:
        if given.only != "page":
            figures |= recording(Path(scratch), given.rounds)
        if given.only != "recording":
            figures |= of_the_page(Path(scratch))
    for name, value in figures.items():
        print(f"{name:<40} {value:>10.4g}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

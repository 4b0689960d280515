"""Pictures of layers and histograms, first sights and ends of signals, against what plain loops find in the store."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from danlu.watch import ends, pictures, store
from danlu.watch.axes import axes
from danlu.watch.coarse import Coarse, length
from danlu.watch.histogram import histogram
from danlu.watch.signals import Signals
from danlu.watch.store import Recorder


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 steps, resumed at 301 from 350 and at 301 once more; layers every 10 steps; histograms whose range grows."""
    path = tmp_path_factory.mktemp("run") / "metrics.sqlite"
    random = np.random.default_rng(0)
    for first, last in ((1, 350), (301, 310), (301, 400)):
        with Recorder.open(path) as recorder:
            recorder.start_segment(first, {"tokens_per_step": 10})
            recorder.scalars(first - 1, {"validation/loss": float(first)})  # ahead of training
            for step in range(first, last + 1):
                loss = math.nan if step % 97 == 0 else float(random.normal()) + (100 if (first, step) == (1, 349) else 0)
                recorder.scalars(step, {"train/loss": loss})
                if step % 10 == 0:
                    layer = {f"layer/block.{at}.weight/update_rms": at + step / 1000 for at in (0, 2, 10)}
                    recorder.scalars(step, layer | {"layer/block.2.weight/update_max": 1.0})
                    recorder.histograms(step, {"layer/w/update": histogram(random.normal(size=500) * 2.0 ** (step // 100))})
    return path


def test_a_first_sight_has_the_extremes_and_the_counts_of_the_whole(metrics: Path) -> None:
    steps, losses = store.series(metrics, "train/loss")
    seen = Coarse(metrics, "train/loss", 60)
    assert (seen.points, seen.not_finite) == (len(losses), np.isnan(losses).sum()) == (400, 4)
    assert 30 < len(seen.steps) <= 60 and (np.diff(seen.steps) >= 0).all()
    assert (seen.steps[0], seen.steps[-1]) == (1, 400)
    for first, last, low, high in zip(seen.steps[::2], seen.steps[1::2], seen.values[::2], seen.values[1::2], strict=True):
        column = losses[(steps >= first) & (steps <= last)]
        assert [low, high] == pytest.approx([np.nanmin(column), np.nanmax(column)], rel=1e-12)
    assert [seen.values.min(), seen.values.max()] == pytest.approx([np.nanmin(losses), np.nanmax(losses)], rel=1e-12)
    assert seen.values.max() < 50, "a resume replaced step 349"
    assert np.nanmean(seen.means) == pytest.approx(np.nanmean(losses), abs=0.1)
    assert length(metrics, "train/loss") == 400 and length(metrics, "none") == 0


def test_the_ends_of_a_signal(metrics: Path) -> None:
    for name in ("train/loss", "validation/loss"):
        steps, found = store.series(metrics, name)
        assert ends.first(metrics, name) == found[0]
        for count in (1, 30, 1000):
            last_steps, last = ends.newest(metrics, name, count)
            np.testing.assert_array_equal(last_steps, steps[-count:])
            np.testing.assert_array_equal(last, found[-count:])
    assert ends.first(metrics, "none") is None and len(ends.newest(metrics, "none")[0]) == 0
    assert [part[1:] for part in ends.parts(store.segments(metrics))] == [(1, 301), (301, 2**63 - 1)]


def test_the_clock_is_that_of_the_store_and_time_at_work_leaves_pauses_out(metrics: Path) -> None:
    known = dict(zip(*(column.tolist() for column in store.times(metrics)), strict=True))
    steps, moments = ends.clock(metrics, 50)
    assert 45 < len(steps) < 60
    for step, moment in zip(steps.tolist(), moments.tolist(), strict=True):
        assert known[step] == moment or step == 300, "that one has another value from ahead of the resume"
    found = axes(metrics)
    assert list(found) == ["step", "tokens", "time"]
    assert found["tokens"].place(np.array([7, 1000])).tolist() == [70.0, 10000.0], "also beyond the end"
    worked = sum(segment.seen - segment.started for segment in store.segments(metrics))
    assert (np.diff(found["time"].x) >= 0).all() and found["time"].x[0] >= 0 and found["time"].x[-1] <= worked


def test_layers_by_steps(metrics: Path) -> None:
    found = pictures.layers(Signals(), metrics, "update_rms")
    assert found["layers"] == ["block.0.weight", "block.2.weight", "block.10.weight"], "by number"
    assert found["steps"] == list(range(10, 401, 10)) and found["rows"][2] == [10 + step / 1000 for step in found["steps"]]
    assert (found["low"], found["high"], found["points"], found["until"]) == (0.01, 10.4, 40, 400)
    few = pictures.layers(Signals(), metrics, "update_rms", columns=4)
    assert few["steps"] == [10, 110, 210, 310] and few["rows"][0] == pytest.approx([0.055, 0.155, 0.255, 0.355])
    assert pictures.layers(Signals(), metrics, "none")["layers"] == []
    assert pictures.layer_kinds(store.names(metrics)) == ["update_max", "update_rms"]


def test_histograms_of_different_ranges_share_their_edges(metrics: Path) -> None:
    found = pictures.histograms(metrics, "layer/w/update")
    raw = store.histograms(metrics, "layer/w/update")
    assert found["steps"] == raw.steps.tolist() and len(set(raw.exponents.tolist())) > 3
    for column, (exponent, counts) in enumerate(zip(raw.exponents.tolist(), raw.counts, strict=True)):
        bounds = 2.0 ** (np.arange(exponent - 31, exponent + 1) / 2)
        edges = np.concatenate((-bounds[::-1], [0.0], bounds))
        for (low, high), row in zip(found["edges"], found["rows"], strict=True):
            inside = (edges[:-1] >= low * (1 - 1e-3 * np.sign(low))) & (edges[1:] <= high * (1 + 1e-3 * np.sign(high)))
            if low * high > 0:  # rows beside the one in the middle are bins as they were
                assert (row[column] or 0.0) == pytest.approx(counts[inside].sum() / counts.sum(), abs=1e-4)
        assert sum(row[column] or 0.0 for row in found["rows"]) == pytest.approx(1.0, abs=1e-2)
    assert found["edges"] == sorted(found["edges"], reverse=True)
    assert pictures.histograms(metrics, "none")["steps"] == []

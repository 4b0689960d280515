"""The live page's server over real HTTP: what it answers is what the store holds, and what it refuses."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live_server import events_of, get, record, serving, until, values

from danlu.errors import UserError
from danlu.watch import facts, signals, store
from danlu.watch.server.runs import Runs
from danlu.watch.store import Recorder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    record(root / "one", range(1, 301))
    record(root / "two", range(1, 201))
    record(root / "two", range(101, 151))
    (root / "no run").mkdir()
    return root


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    with serving(place) as address:
        yield address


def code_of(address: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, http.client.HTTPMessage]:
    with pytest.raises(urllib.error.HTTPError) as error:
        get(address, path, headers)
    return error.value.code, error.value.headers


def test_the_runs_below_a_folder(address: str) -> None:
    states = {state["id"]: state for state in get(address, "/api/runs")["runs"]}
    assert set(states) == {"one", "two"}
    assert (states["one"]["status"], states["one"]["step"], states["one"]["total"]) == ("finished", 300, 300)
    assert (states["two"]["step"], states["two"]["segments"]) == (150, 2), "the newest segment tells"


def test_curves_are_those_of_the_store(address: str, place: Path) -> None:
    answer = get(address, "/api/curves?name=train/loss&name=no/such&run=one&run=two&run=none")["curves"]
    assert set(answer["train/loss"]) == {"one", "two"} and answer["no/such"] == {}
    steps, losses = store.series(place / "two" / "metrics.sqlite", "train/loss")
    assert answer["train/loss"]["two"]["x"] == steps.tolist() and len(steps) == 150
    assert answer["train/loss"]["two"]["y"] == pytest.approx(losses.tolist(), rel=1e-6)


def test_a_zoom_has_every_point_and_one_on_either_side(address: str) -> None:
    thin = get(address, "/api/curves?name=train/loss&run=one&points=40")["curves"]["train/loss"]["one"]
    assert len(thin["x"]) <= 40 and thin["points"] == thin["inside"] == 300 and thin["shown"] == len(thin["x"])
    near = get(address, "/api/curves?name=train/loss&run=one&points=40&from=100&to=110")["curves"]["train/loss"]["one"]
    assert near["x"] == list(range(99, 112)) and near["inside"] == near["shown"] == 11


def test_other_axes(address: str) -> None:
    known = get(address, "/api/run?run=one")["axes"]
    assert list(known) == ["step", "tokens", "time", "flops"]
    for axis, each in (("tokens", 1000), ("flops", 2e9)):
        curve = get(address, f"/api/curves?name=train/loss&run=one&axis={axis}")["curves"]["train/loss"]["one"]
        assert curve["x"] == pytest.approx([step * each for step in range(1, 301)])
    curve = get(address, "/api/curves?name=train/loss&run=one&axis=time")["curves"]["train/loss"]["one"]
    assert curve["x"] == sorted(curve["x"]) and curve["x"][0] >= 0


def test_long_signals_come_at_once_and_whole_soon_after(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(signals, "LONG", 100)
    with serving(place) as address:
        ask = "/api/curves?name=train/loss&run=two&points=60"
        first = get(address, ask)["curves"]["train/loss"]["two"]
        assert first["coarse"] and first["points"] == 150
        whole = until(lambda: (one := get(address, ask)["curves"]["train/loss"]["two"]) and "coarse" not in one and one)
        assert whole["points"] == 150
        assert max(first["y"]) == max(whole["y"]) and min(first["y"]) == min(whole["y"])


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/run?run=../one", 404),
        ("/api/run?run=" + urllib.parse.quote("/etc/passwd"), 404),
        ("/api/run?run=no%20run", 404),
        ("/api/run", 404),
        ("/api/doctor?run=" + "x" * 5000, 404),
        ("/api/layers?run=..%2f..&kind=x", 404),
        ("/..%2f..%2fetc/passwd", 404),
        ("/vendor/LICENSE", 404),
        ("/api/curves?run=one", 400),
        ("/api/curves?run=one" + "&name=a" * 65, 400),
        ("/api/curves?run=one&name=train/loss&points=1e12", 400),
        ("/api/curves?run=one&name=train/loss&points=nan", 400),
        ("/api/curves?run=one&name=train/loss&points=0", 400),
        ("/api/curves?run=one&name=train/loss&axis=password", 400),
        ("/api/curves?run=one&name=train/loss&from=2&to=1", 400),
        ("/api/curves?run=one&name=train/loss&from=1e999", 400),
        ("/api/curves?run=one&name=train/loss&to=" + "9" * 5000, 400),
    ],
)
def test_what_is_refused(address: str, path: str, code: int) -> None:
    assert code_of(address, path)[0] == code
    assert get(address, "/api/runs")["runs"], "and it goes on"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8267", "127.0.0.1.evil.example", "169.254.1.1", ""])
def test_a_foreign_name_that_leads_here_is_turned_away(address: str, host: str) -> None:
    code, _ = code_of(address, "/api/runs", {"Host": host})
    assert code == 400


def test_it_only_reads(address: str) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    for method in ("POST", "PUT", "DELETE"):
        connection.request(method, "/api/runs")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405


def test_every_answer_forbids_foreign_content(address: str) -> None:
    for path in ("/", "/page.js", "/api/runs", "/nowhere"):
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        policy = answer.getheader("Content-Security-Policy") or ""
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"), path
        assert "unsafe" not in policy and "http" not in policy
        assert answer.getheader("Access-Control-Allow-Origin") is None and answer.getheader("X-Content-Type-Options") == "nosniff"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "metrics.sqlite").write_bytes(b"junk" * 1000)
    with serving(tmp_path) as address:
        (state,) = get(address, "/api/runs")["runs"]
        assert state["problem"].startswith("metrics.sqlite: cannot be read") and state["status"] is None
        assert get(address, "/api/run?run=bad")["problems"]
        assert get(address, "/api/curves?name=train/loss&run=bad")["curves"] == {"train/loss": {}}
        assert get(address, "/api/names?run=bad")["names"] == {"bad": []}
        assert code_of(address, "/api/layers?run=bad&kind=x")[0] == 503


def test_an_imported_log_may_call_anything_steps(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    with Recorder.open(tmp_path / "odd" / "metrics.sqlite") as recorder:
        recorder.start_segment(1, {"steps": "many", "tokens_per_step": "some"})
        for step in (1, 2, 3):
            recorder.scalars(step, values(step), moment=float(step))
    with serving(tmp_path) as address:
        (state,) = get(address, "/api/runs")["runs"]
        assert (state["step"], state["seconds_left"]) == (3, None)
        assert next(events_of(address))[1]["ids"] == ["odd"]


def test_news_of_a_live_run_and_what_a_reader_that_slept_has_missed(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    with Recorder.open(folder / "metrics.sqlite") as recorder, serving(place, tmp_path) as address:
        recorder.start_segment(1, {"steps": 10})
        recorder.scalars(1, values(1))
        stream = events_of(address)
        number, news = next((number, news) for number, news in stream if "live" in [run["id"] for run in news["runs"]])
        assert set(news["ids"]) == {"one", "two", "live"}
        recorder.scalars(2, values(2))
        seen = next(run for _, news in stream for run in news["runs"] if run["id"] == "live" and run["step"] == 2)
        assert seen["status"] == "running" and seen["total"] == 10
        stream.close()
        recorder.scalars(3, values(3))
        recorder.flush()
        # From where it was: the live run alone, as it is now. From a number of another server's: everything.
        missed = next(run for _, news in events_of(address, number) for run in news["runs"] if run["step"] == 3)
        assert missed["id"] == "live"
        everything = next(iter(events_of(address, "17-99")))[1]
        assert {run["id"] for run in everything["runs"]} == {"one", "two", "live"}


def test_a_run_that_stops_without_a_word_is_shown_as_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ALIVE_SECONDS", 1.5)
    record(tmp_path / "gone", range(1, 5), ends=None)
    with serving(tmp_path) as address:
        stream = events_of(address)
        assert next(stream)[1]["runs"][0]["status"] == "running"
        assert next(run for _, news in stream for run in news["runs"])["status"] == "broken_off"


def test_alive_means_ten_seconds_at_most() -> None:
    from danlu.watch.server.feed import POLL_SECONDS

    assert facts.ALIVE_SECONDS + POLL_SECONDS < 10


def test_the_doctor_is_asked_in_the_background_and_again_when_there_is_more(tmp_path: Path) -> None:
    asked = []

    def diagnose(folder: Path) -> dict[str, object]:
        asked.append(folder.name)
        if len(asked) > 1:
            raise UserError("no such thing")
        return {"name": folder.name, "worst": "warning", "findings": [], "silent": [], "not_enough_data": {}}

    record(tmp_path / "run", range(1, 5))
    with serving(tmp_path, diagnose=diagnose) as address:
        assert get(address, "/api/doctor?run=run")["state"] == "pending"
        ready = until(lambda: (one := get(address, "/api/doctor?run=run")) and one["state"] == "ready" and one)
        assert (ready["worst"], ready["step"], ready["current"]) == ("warning", 4, True)
        record(tmp_path / "run", range(5, 9))
        later = get(address, "/api/doctor?run=run")
        assert (later["step"], later["newest_step"], later["current"], asked) == (4, 8, False, ["run"]), "not at once"


def test_new_runs_are_found_and_names_stay_apart(tmp_path: Path) -> None:
    record(tmp_path / "a" / "same", range(1, 3))
    record(tmp_path / "b" / "same", range(1, 3))
    runs = Runs([tmp_path / "a", tmp_path / "b" / "same"])
    assert [run.id for run in runs.all()] == ["same", "same~2"]
    record(tmp_path / "a" / "more", range(1, 3))
    assert [run.id for run in runs.all(fresh_seconds=0)] == ["more", "same", "same~2"], "names do not move to other runs"
    with pytest.raises(UserError, match="nor a folder of runs"):
        Runs([tmp_path / "missing"])


def test_memory_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sqlite"
    held = signals.Signals()

    def check() -> None:
        recorder.flush()
        for name in ("train/loss", "validation/loss", "none"):
            for mine, theirs in zip(held.series(path, name), store.series(path, name), strict=True):
                np.testing.assert_array_equal(mine, theirs)

    with Recorder.open(path) as recorder:
        recorder.start_segment(1, {})
        for last in (0, 40, 41, 120):
            for step in range(1, last + 1):
                recorder.scalars(step, values(step) | ({"train/loss": float("nan")} if step % 3 == 0 else {}))
            check()
    with Recorder.open(path) as recorder:
        recorder.start_segment(81, {})
        check()
        for step in (80, 81, 90):
            recorder.scalars(step, values(step, noise=1.0))
            check()


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = record(tmp_path / "run", range(1, 101)) / "metrics.sqlite"
    held = signals.Signals(limit=4000)
    for _ in range(2):
        for name in store.names(path):
            assert len(held.series(path, name)[0]) == len(store.series(path, name)[0])
    assert sum(one.bytes for one in held._held.values()) <= 4000


def test_json_holds_no_nan(tmp_path: Path) -> None:
    folder = tmp_path / "nan"
    folder.mkdir()
    with Recorder.open(folder / "metrics.sqlite") as recorder:
        recorder.start_segment(1, {})
        recorder.scalars(1, {"train/loss": float("nan"), "layer/a/parameter_rms": float("inf")})
    with serving(tmp_path) as address:
        assert get(address, "/api/newest?run=nan&name=train/loss") == {"train/loss": "nan"}
        assert get(address, "/api/layers?run=nan&kind=parameter_rms")["rows"] == [[None]]
        assert json.dumps(get(address, "/api/run?run=nan"), allow_nan=False)

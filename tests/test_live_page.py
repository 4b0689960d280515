"""The page beside a training, the doctor that it asks, and where it is served."""

from __future__ import annotations

import io
import urllib.error
from pathlib import Path

import pytest
from live_server import get, record, until

from danlu import live_page
from danlu.errors import UserError
from danlu.watch.server.serve import PORT, bound


def test_a_page_beside_a_training_says_where_it_is_and_ends_with_it(tmp_path: Path) -> None:
    folder, said = record(tmp_path / "run", range(1, 61)), tmp_path / "out.txt"
    with said.open("w") as stream, live_page.beside(folder, stream):
        line = until(lambda: said.read_text(), seconds=60)
        assert line.startswith("watch: http://127.0.0.1:") and line.count("\n") == 1
        address = line.split()[1].rstrip("/")
        (state,) = get(address, "/api/runs")["runs"]
        assert state["id"] == "run" and state["step"] == 60
        found = until(lambda: (one := get(address, "/api/doctor?run=run"))["state"] != "pending" and one, seconds=60)
        assert found["state"] == "ready" and found["findings"] == [] and found["silent"]
    with pytest.raises(urllib.error.URLError):
        get(address, "/api/runs")


def test_a_page_that_cannot_start_is_no_reason_to_stop(tmp_path: Path) -> None:
    stream = io.StringIO()  # no file that a process could write to
    with live_page.beside(tmp_path, stream):
        pass
    assert stream.getvalue().startswith("the live page cannot start: ")


def test_a_run_that_cannot_be_judged_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: [\n")
    with pytest.raises(UserError) as error:
        live_page.diagnosis(tmp_path)
    assert "recipe.yaml" in str(error.value) and "\n" not in str(error.value)


def test_a_port_that_is_taken() -> None:
    with bound(0) as first:
        taken = first.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {taken}: cannot be served: .*give another"):
            bound(taken)
    with bound(None) as usual, bound(None) as another:
        assert another.getsockname()[1] not in (usual.getsockname()[1], PORT)

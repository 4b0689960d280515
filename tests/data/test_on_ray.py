"""Curation on a local Ray cluster: the same result as in this process, though a worker is killed in the middle."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danlu.data.curate.job import Settings, curate
from danlu.data.curate.paragraphs import Paragraphs
from danlu.data.curate.stage import Rejected
from danlu.data.sources import resolve
from danlu.errors import DanluError, UserError
from danlu.recipe.data_sections import Source

from .test_dedup import PLAN, content, english, family, write_texts

ray = pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL", object_store_memory=80 << 20)
    yield
    ray.shutdown()


def killing(times: int, flags: Path) -> Any:
    """A stage that kills its process, with no time to clean up, the first `times` times that it sees a certain text."""

    class Killing:  # local, so that it travels to workers that cannot import this file
        name = "killing"

        def apply(self, documents: Any) -> list[Any]:
            if any(document.text.startswith("deadly") for document in documents) and len(os.listdir(flags)) < times:
                (flags / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return [Rejected(one, "even", 0.0, soft=True) if len(one.text) % 2 == 0 else one for one in documents]

        def __repr__(self) -> str:
            return "Killing()"

    return Killing()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("danlu.data.curate.shard.SHARD_BYTES", 1)  # a shard for every file
    texts = family(300)
    texts[random.Random(3).randrange(100, 200)] = "deadly text of an odd length"
    often = "\n" + english(random.Random(4), 20)
    write_texts([text + often * (number % 9 == 0) for number, text in enumerate(texts)], tmp_path / "in")
    (tmp_path / "flags").mkdir()
    return resolve([Source(path=str(tmp_path / "in"))])


def quiet(line: str) -> None:
    pass


def test_the_same_to_the_byte_though_a_worker_is_killed(source: Any, tmp_path: Path) -> None:
    stages = (killing(1, tmp_path / "flags"),)
    asked = Settings(stages, PLAN, Paragraphs(10, 3), noise_ratio=0.1)
    there = curate(source, tmp_path / "ray", replace(asked, executor="ray"), quiet)
    assert len(os.listdir(tmp_path / "flags")) == 1, "nothing was killed"
    here = curate(source, tmp_path / "here", asked, quiet)
    assert content(there) == content(here)
    assert there.report["waterfall"][-2]["changed"] > 3
    assert len(list((there.folder / "kept").iterdir())) > 3 and there.report["noise"]["achieved"] > 0


def test_paths_are_those_of_who_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(family(3), tmp_path / "in")
    monkeypatch.chdir(tmp_path)  # the cluster was started elsewhere
    done = curate(resolve([Source(path="in")]), Path("out"), Settings(plan=PLAN, executor="ray"), quiet)
    assert done.report["unreadable"] == 0 and Path("out/kept").is_dir()


def test_a_job_that_kills_every_worker_ends_with_one_line(source: Any, tmp_path: Path) -> None:
    with pytest.raises(DanluError, match="a worker process was killed"):
        curate(source, tmp_path / "out", Settings((killing(99, tmp_path / "flags"),), PLAN, executor="ray"), quiet)


def test_an_error_for_the_user_arrives_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.jsonl").write_text("no json\n" * 5)
    with pytest.raises(UserError, match=r"^10 of 10 records are bad"):
        curate(resolve([Source(path=str(tmp_path / "in"))]), tmp_path / "out", Settings(plan=PLAN, executor="ray"), quiet)

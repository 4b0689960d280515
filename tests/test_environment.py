"""Who a process is by the variables of torchrun and SLURM, and what the command line says of machines."""

from __future__ import annotations

import os

import pytest

from danlu import environment
from danlu.environment import Nodes, Place, first_host, nodes, place
from danlu.errors import UserError

SLURM = {
    "SLURM_JOB_ID": "12345",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
PADDLE = {
    "PADDLE_TRAINER_ID": "3",
    "PADDLE_TRAINERS_NUM": "4",
    "PADDLE_LOCAL_RANK": "1",
    "PADDLE_TRAINER_ENDPOINTS": "node0:6070,node0:6071,node1:6070,node1:6071",
}
KNOWN = (
    *PADDLE,
    "PADDLE_MASTER",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "SLURM_CPUS_PER_TASK",
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*KNOWN, *PADDLE, *(name for name in os.environ if name.startswith(("SLURM_", "PADDLE_")))]:
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back
        monkeypatch.delenv(name)


def given(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_the_launcher_of_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, PADDLE)
    assert place() == Place(3, 4, "paddle.distributed.launch")
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.environ["LOCAL_RANK"]) == ("node0", "6070", "1")


def test_the_master_of_paddle_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, PADDLE | {"PADDLE_MASTER": "node9:7000"})
    place()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("node9", "7000")


@pytest.mark.parametrize(
    "wrong", [{"PADDLE_TRAINER_ENDPOINTS": "node0"}, {"PADDLE_TRAINER_ID": "4"}, {"PADDLE_TRAINERS_NUM": "x"}]
)
def test_what_paddles_launcher_cannot_have_said(wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, PADDLE | wrong)
    with pytest.raises(UserError, match=next(iter(wrong))):
        place()


def test_alone() -> None:
    assert place() is None


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, {"RANK": "3", "WORLD_SIZE": "4"})
    assert place() == Place(3, 4, "torchrun")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert place() is None


def test_a_job_step_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the variables that torch reads are set from SLURM's, the same meeting point on every task."""
    given(monkeypatch, SLURM)
    assert place() == Place(5, 8, "srun")
    first = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    assert first[0] == "gpu03" and 1024 < int(first[1]) < 32768
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("5", "8", "1")
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)
    given(monkeypatch, {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert place() == Place(0, 8, "srun")
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == first


def test_the_body_of_a_batch_script_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")})
    assert place() is None


def test_one_task_starts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SLURM | {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"})
    assert place() is None


def test_machines_named_on_the_command_line_win(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SLURM)
    environment.forget()
    assert place() is None
    assert os.environ["SLURM_NODEID"] == "1"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("gpu3", "gpu3"),
        ("gpu3,gpu4", "gpu3"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7,9]", "gpu7"),
        ("rack[1-2]node[04-05]", "rack1node04"),
        ("a-b.c.d", "a-b.c.d"),
        ("", ""),
    ],
)
def test_the_first_host(text: str, host: str) -> None:
    assert first_host(text) == host


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE is 'four', which is no number"),
        ({"WORLD_SIZE": "4"}, "RANK is not set"),
        ({"WORLD_SIZE": "4", "RANK": "4"}, "RANK is 4, but there are 4 processes"),
        ({"WORLD_SIZE": "4", "RANK": "-1"}, "RANK is '-1'"),
        (SLURM | {"SLURM_PROCID": "8"}, "SLURM_PROCID is 8, but there are 8"),
    ],
)
def test_variables_that_contradict_each_other(variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, variables)
    with pytest.raises(UserError, match=message):
        place()


def test_machines() -> None:
    assert nodes(None, None, None) == Nodes() == nodes(1, None, None)
    assert nodes(4, 3, "node0:29500") == Nodes(4, 3, "node0:29500")
    assert nodes(2, 0, "[::1]:29500").rendezvous == "[::1]:29500"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, 1, None), "--node-rank and --rendezvous belong to --nodes"),
        ((4, None, "a:1"), "which of them is this"),
        ((4, 4, "a:1"), "--node-rank 4: of 4 machines the last one has 3"),
        ((4, 0, None), "--rendezvous is missing"),
        ((4, 0, "node0"), "'node0' is no host:port"),
        ((4, 0, "node0:http"), "is no host:port"),
        ((4, 0, "node0:99999"), "is no host:port"),
    ],
)
def test_machines_that_are_not_all_said(given: tuple[int | None, int | None, str | None], message: str) -> None:
    with pytest.raises(UserError, match=message):
        nodes(*given)

"""Where the processes of a layout meet before any process group: is everybody there, and do all hold the same? No framework."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from danlu.errors import UserError

COME_SECONDS = 300
"""How long the first rank waits for the others; imports from a network file system take their time."""
LEAD = timedelta(days=7)
"""How long the others wait for the first rank, which may prepare the data meanwhile."""
SHARED_SECONDS = 10.0
"""How long a file may take to be seen on other machines."""
_NAMED = 3


class Store(Protocol):
    """A key-value store that all processes reach, as torch has it."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Wait for a value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of them are there."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait for all of them. An error: they do not come in time."""


class Meeting:
    """What the processes say to each other. Every process calls the same methods in the same order."""

    def __init__(self, rank: int, processes: int, store: Store) -> None:
        self.rank, self.processes, self.store = rank, processes, store

    def announce(self, word: Mapping[str, Any]) -> None:
        """The first rank's word to the others (JSON); only the first one counts."""
        if not self.store.check(["lead"]):
            self.store.set("lead", json.dumps(word))

    def listen(self) -> dict[str, Any]:
        """Wait for the first rank's word."""
        self.store.wait(["lead"], LEAD)
        word: dict[str, Any] = json.loads(self.store.get("lead"))
        return word

    def roll_call(self, identity: Mapping[str, Any], file: Path) -> None:
        """Make sure that all ranks are there, see the same folder and hold the same things by name (JSON).

        ``file`` is where the first rank leaves a number that the others must see. UserError, on every rank: some have not come,
        or differ, and in what.
        """
        seen = self._see(file)
        self.store.set(f"here/{self.rank}", json.dumps({"sees": seen, "folder": str(file.parent.parent), **identity}))
        if self.rank == 0:
            self.store.set("verdict", self._compare())
        self.store.wait(["verdict"], timedelta(seconds=2 * COME_SECONDS))
        if verdict := self.store.get("verdict").decode():
            raise UserError(verdict)

    def _see(self, file: Path) -> bool:
        """Whether this rank's run folder is the first rank's."""
        if self.rank == 0:
            number = secrets.token_hex(8)
            file.write_text(number, encoding="utf-8")
            self.store.set("number", number)
            return True
        self.store.wait(["number"], timedelta(seconds=COME_SECONDS))
        wanted, until = self.store.get("number").decode(), time.monotonic() + SHARED_SECONDS
        while time.monotonic() < until:
            if file.is_file() and file.read_text(encoding="utf-8") == wanted:
                return True
            time.sleep(0.1)
        return False

    def _compare(self) -> str:
        """Nothing, or what is wrong."""
        until, here = time.monotonic() + COME_SECONDS, {}
        for rank in range(self.processes):
            if self._comes(f"here/{rank}", until):
                here[rank] = json.loads(self.store.get(f"here/{rank}"))
        if missing := [str(rank) for rank in range(self.processes) if rank not in here]:
            return f"{_ranks(missing)} did not come within {COME_SECONDS} seconds; see what they printed, or their machines"
        if blind := [str(rank) for rank in here if not here[rank]["sees"]]:
            folder = here[int(blind[0])]["folder"]
            return (
                f"{_ranks(blind)}: {folder} is another folder there than on the first rank; put the runs on a file system that "
                "all machines share, or give the path of the same folder"
            )
        return "; ".join(_differences(here))

    def _comes(self, key: str, until: float) -> bool:
        while not self.store.check([key]):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True


def _differences(here: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """What is not the same on all ranks, one sentence each."""
    for name in here[0].keys() - {"sees", "folder"}:
        values = {rank: dict(_flat(name, identity[name])) for rank, identity in here.items()}
        fields = sorted({field for each in values.values() for field in each})
        different = [field for field in fields if len({each.get(field) for each in values.values()}) > 1]
        for field in different[:_NAMED]:
            most = Counter(each.get(field) for each in values.values()).most_common(1)[0][0]
            odd = [rank for rank, each in values.items() if each.get(field) != most]
            theirs = values[odd[0]].get(field)
            yield f"{_ranks([str(rank) for rank in odd])}: {field} is {theirs}, but {most} on the others; start them all alike"


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Fields with their dotted paths, values as JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _ranks(ranks: list[str]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"

"""The thread that drives an engine, for callers in other threads."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from danlu.serve.engine import Engine
from danlu.serve.sequence import Output, Reason, Sequence

Deliver = Callable[[Output], None]


class Full(Exception):
    """So many requests wait already that this one is refused."""


class Worker:
    """Steps the engine while there is something to do. What a step makes is given to each sequence's own callback.

    Only its thread touches the engine's sequences: what others want of it waits in an inbox for the step's end.
    """

    def __init__(self, engine: Engine, most_waiting: int) -> None:
        self.engine, self.most_waiting = engine, most_waiting
        self._deliver: dict[Sequence, Deliver] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._arriving = 0
        """Sequences in the inbox."""
        self._news = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is being computed; what has not ended by then is told so."""
        with self._news:
            self._ends = True
            self._news.notify()
        self._thread.join()

    def submit(self, sequences: Mapping[Sequence, Deliver]) -> None:
        """Hand over the sequences of one request: all or none. Full: too many wait. UserError: see `Engine.check`.

        The callbacks are called in the worker's thread; the last output of each has a reason.
        """
        for sequence in sequences:
            self.engine.check(sequence)
        with self._news:
            if self._ends or len(self.engine.waiting) + self._arriving + len(sequences) > self.most_waiting:
                raise Full
            self._arriving += len(sequences)
            self._inbox.append(lambda: self._add(sequences))
            self._news.notify()

    def cancel(self, sequence: Sequence) -> None:
        """Nobody waits for this sequence any more. One that has ended already is no error."""
        with self._news:
            self._inbox.append(lambda: self._drop(sequence))
            self._news.notify()

    def _work(self) -> None:
        while not self._ends:
            with self._news:
                self._news.wait_for(lambda: self._ends or self._inbox or self.engine.busy)
                asked = list(self._inbox)
                self._inbox.clear()
                for do in asked:
                    do()
            try:
                for sequence, output in self.engine.step():
                    self._tell(sequence, output)
            except Exception:  # such as no memory: the requests under way fail, the server goes on
                traceback.print_exc()
                self._end_all("error")
        with self._news:
            for do in self._inbox:
                do()
            self._end_all("cancelled")

    def _add(self, sequences: Mapping[Sequence, Deliver]) -> None:
        self._arriving -= len(sequences)
        for sequence, deliver in sequences.items():
            self._deliver[sequence] = deliver
            self.engine.add(sequence)

    def _drop(self, sequence: Sequence) -> None:
        if self._deliver.pop(sequence, None) is not None:
            self.engine.cancel(sequence)
            self.engine.counts["ended_cancelled"] += 1

    def _tell(self, sequence: Sequence, output: Output) -> None:
        deliver = self._deliver.pop(sequence) if output.reason else self._deliver[sequence]
        if output.reason:
            self.engine.counts[f"ended_{output.reason}"] += 1
        with suppress(RuntimeError):  # the event loop of who asked is closed
            deliver(output)

    def _end_all(self, reason: Reason) -> None:
        for sequence in list(self._deliver):
            self.engine.cancel(sequence)
            self._tell(sequence, Output("", None, None, [], reason))

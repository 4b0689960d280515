"""Parts of a step's time on a clock that is wound by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from danlu.engines.torch import clock as clocks
from danlu.engines.torch.clock import Clock

Pass = Callable[[float], None]


@pytest.fixture
def wind(monkeypatch: pytest.MonkeyPatch) -> Pass:
    now = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])

    def on(seconds: float) -> None:
        now[0] += seconds

    return on


def test_a_part_inside_another_interrupts_it(wind: Pass) -> None:
    clock = Clock(torch.device("cpu"))
    wind(100)
    clock.begin()
    wind(1)
    with clock.during("backward"):
        wind(2)
        with clock.during("communication"):
            wind(4)
        wind(8)
    wind(16)
    with clock.during("optimizer"), clock.during("communication"):
        wind(32)
    assert clock.take() == {"backward": 10, "communication": 36, "optimizer": 0}
    wind(5)
    clock.begin()
    assert clock.take() == {}


def test_forward_passes_are_counted_also_when_they_fail(wind: Pass) -> None:
    class Stage(nn.Module):
        def forward(self, seconds: float) -> float:
            wind(abs(seconds))
            if seconds < 0:
                raise ValueError
            return seconds

    clock, stage = Clock(torch.device("cpu")), Stage()
    clock.watch(stage)
    clock.begin()
    stage(3.0)
    with pytest.raises(ValueError):
        stage(-4.0)
    wind(7)
    assert clock.take() == {"forward": 7} and clock.part == clocks.OTHER

"""Figures as text, against what a person would write."""

from __future__ import annotations

import math

import pytest

from danlu.watch.format import bytes_text, cells, count, duration, figure, padded, share, shortened


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1023.96, "1.0 KiB"), (1536, "1.5 KiB"), (1024**2 - 1, "1.0 MiB"), (13 * 1024**3, "13.0 GiB")],
)
def test_bytes(size: float, text: str) -> None:
    assert bytes_text(size) == text
    assert bytes_text(3000 * 1024**4) == "3000.0 TiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 ms"), (0.85, "850 ms"), (0.9996, "1.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1m 00s")),
        *((200, "3m 20s"), (3599.7, "1h 00m"), (3720, "1h 02m"), (86399, "1d 00h"), (183600, "2d 03h"), (math.inf, "–")),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1.0k"),
        (1234, "1.2k"),
        (999_960, "1.0M"),
        (42e6, "42.0M"),
        (1.1e9, "1.1B"),
        (15e12, "15.0T"),
    ],
)
def test_counts(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((2.34567, "2.346"), (10.4268, "10.43"), (1234.56, "1235"), (0.0, "0.000"), (0.05, "0.050")),
        *((3e-4, "3.00e-04"), (-2.5, "-2.500"), (123456.0, "1.23e+05"), (math.nan, "nan"), (-math.inf, "-inf")),
    ],
)
def test_figures(value: float, text: str) -> None:
    assert figure(value) == text


def test_what_is_not_finite_is_never_shown_as_a_number() -> None:
    assert (bytes_text(math.nan), count(math.inf), share(math.nan), share(0.4123)) == ("nan", "inf", "nan", "41.2%")


def test_width_on_a_terminal() -> None:
    assert cells("loss") == 4
    assert cells("炼丹炉") == 6
    assert cells("ｆｕｌｌ") == 8  # full-width letters
    assert cells("e\u0301") == 1  # a combining accent
    assert padded("炉", 5) == "炉   " and padded("too long", 3) == "too long"
    assert shortened("a炉b炉", 5) == "a炉b" and shortened("炉", 1) == "" and shortened("ab", 9) == "ab"

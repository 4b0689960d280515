from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from danlu.data.split import place


@given(st.text())
def test_a_place_is_a_function_of_the_text_alone(text: str) -> None:
    first, second = place(text), place(text + "")
    assert first == second
    assert 0 <= first.split < 1
    assert 0 <= first.weight < 1


def test_the_places_are_frozen() -> None:
    """A change would move documents of data that is prepared already from one side to the other."""
    digest = hashlib.blake2b("炼丹".encode(), digest_size=16, person=b"danlu split").digest()
    expected = int.from_bytes(digest[:8], "little") / 2**64
    assert abs(place("炼丹").split - expected) < 1e-15
    assert f"{place('danlu').split:.12f} {place('danlu').weight:.12f}" == "0.379208115073 0.280771800422"


def test_places_are_uniform_and_independent() -> None:
    places = [place(f"document {number}") for number in range(20_000)]
    for values in ([p.split for p in places], [p.weight for p in places]):
        tenths = [0] * 10
        for value in values:
            tenths[int(value * 10)] += 1
        chi_square = sum((count - 2000) ** 2 / 2000 for count in tenths)
        assert chi_square < 27.9, "p = 0.001 for 9 degrees of freedom"
    both = sum(p.split < 0.5 and p.weight < 0.5 for p in places)
    assert abs(both - 5000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5

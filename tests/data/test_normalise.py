"""One form for the same text."""

from __future__ import annotations

import unicodedata

import pytest

from danlu.data.curate.normalise import Normalise
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.curate_sections import CurateSection, NormaliseSection


def normal(text: str, **settings: object) -> str:
    (found,) = Normalise(NormaliseSection.model_validate(settings)).apply([Document(text, 0, "a:1")])
    assert isinstance(found, Document)
    return found.text


@pytest.mark.parametrize("text", ["e\u0301te\u0301", "가", "中文，全角ＡＢＣ", "ﬁ ½", "\u0958"])
def test_unicode_forms_are_those_of_the_standard(text: str) -> None:
    assert normal(text) == unicodedata.normalize("NFC", text)
    assert normal(text, unicode="NFKC") == unicodedata.normalize("NFKC", text)
    assert normal(text, unicode="none") == text


def test_control_characters_go_and_line_ends_become_one() -> None:
    assert normal("a\x00b\ufeff\u200bc\r\nd\re\u2028f\tg\n") == "abc\nd\ne\nf\tg\n"
    assert normal("a\x00b\r\n", control_characters=False) == "a\x00b\r\n"
    family = "👨\u200d👩\u200d👧 می\u200cخواهم"
    assert normal(family) == family  # these joiners are part of the spelling


def test_what_nothing_is_left_of_is_rejected() -> None:
    (found,) = Normalise(NormaliseSection()).apply([Document("\ufeff\x00 \u200b", 0, "a:1")])
    assert isinstance(found, Rejected) and found.rule == "nothing_left" and not found.soft


def test_default_stands_for_a_stage_with_its_defaults() -> None:
    assert CurateSection.model_validate({"normalise": "default"}).normalise == NormaliseSection()
    assert CurateSection().normalise is None

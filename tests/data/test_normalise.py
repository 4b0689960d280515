"""One form for the same text."""

from __future__ import annotations

import unicodedata

import ftfy.bad_codecs  # noqa: F401, registers sloppy-windows-1252
import pytest

from danlu.data.curate.normalise import Normalise
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.curate_sections import CurateSection, NormaliseSection


def normal(text: str, code: bool = False, **settings: object) -> str:
    (found,) = Normalise(NormaliseSection.model_validate(settings)).apply([Document(text, 0, "a:1", code=code)])
    assert isinstance(found, Document)
    return found.text


@pytest.mark.parametrize("text", ["e\u0301te\u0301", "가", "中文，全角ＡＢＣ", "ﬁ ½", "\u0958"])
def test_unicode_forms_are_those_of_the_standard(text: str) -> None:
    assert normal(text) == unicodedata.normalize("NFC", text)
    assert normal(text, unicode="NFKC") == unicodedata.normalize("NFKC", text)
    assert normal(text, unicode="none") == text


def test_control_characters_go_and_line_ends_become_one() -> None:
    assert normal("a\x00b\ufeff\u200bc\r\nd\re\u2028f\tg\n") == "abc\nd\ne\nf\tg"
    assert normal("a\x00b\r\n", control_characters=False, whitespace=False) == "a\x00b\r\n"
    family = "👨\u200d👩\u200d👧 می\u200cخواهم"
    assert normal(family) == family  # these joiners are part of the spelling


def test_what_nothing_is_left_of_is_rejected() -> None:
    (found,) = Normalise(NormaliseSection()).apply([Document("\ufeff\x00 \u200b", 0, "a:1")])
    assert isinstance(found, Rejected) and found.rule == "nothing_left" and not found.soft


def test_default_stands_for_a_stage_with_its_defaults() -> None:
    assert CurateSection.model_validate({"normalise": "default"}).normalise == NormaliseSection()
    assert CurateSection().normalise is None


def test_blanks_that_no_reader_sees_go_and_the_others_stay() -> None:
    assert normal("\n  a \t\n\n\n\nb\u00a0c\u3000\n\u3000\u3000d  e\n\n") == "  a\n\nb c\n\u3000\u3000d  e"
    assert normal(" a \n\n\n b ", whitespace=False) == " a \n\n\n b "


CHINESE = "今天天气很好，我们去公园走一走。的确如此，“好的”。"
TRUE = [
    CHINESE, "déjà vu, naïve, façade: ÂGE, «été»", "Größe über Öl", "Zażółć gęślą jaźń", "price: 20€–30€…",
    "中文 and “quotes” — dashes…",
    "鎴是一个罕见的字", "Ångström ÷ ×", "ÀÈÌÒÙ", "São Tomé e Príncipe", "数据库，联通，锛", "Œuvre complète",
]  # fmt: skip


@pytest.mark.parametrize("text", TRUE)
def test_true_text_is_not_taken_for_mojibake(text: str) -> None:
    assert normal(f"first line\n{text}\nlast") == f"first line\n{text}\nlast"


WRONG = [("utf-8", "latin-1"), ("utf-8", "sloppy-windows-1252"), ("utf-8", "gb18030"), ("gb18030", "latin-1")]


@pytest.mark.parametrize(("right", "wrong"), WRONG)
def test_mojibake_is_repaired(right: str, wrong: str) -> None:
    text = CHINESE if "gb18030" in (right, wrong) else "It’s “quoted” – déjà vu"
    if wrong == "gb18030":
        text = text[:14]  # an even number of bytes, or the last would be lost
    spoilt = text.encode(right).decode(wrong)
    assert spoilt != text
    assert normal(f"fine\n{spoilt}\nfine") == f"fine\n{text}\nfine"
    assert normal(spoilt, mojibake=False, unicode="none", control_characters=False, whitespace=False) == spoilt


def test_chinese_of_utf_8_read_as_windows_1252() -> None:
    spoilt = "ä¸\xadå›½äººæ°‘"  # 中国人民, soft hyphen included
    assert normal(spoilt, control_characters=False) == "中国人民"


def test_code_is_left_to_the_byte() -> None:
    code = "\tx = 'e\u0301'  \r\n\n\n\nif x:\x0c \u00a0\n"
    assert normal(code, code=True) == code

"""Personal data and secrets, found by form and checksum, replaced by a placeholder of their kind.

What only looks like one stays: version numbers, dates, section numbers, addresses of private networks, and numbers whose checksum
is wrong.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.text_sections import PersonalKind, PersonalSection

EMAIL = re.compile(
    r"(?<![\w.+%/@-])(?!git@)[A-Za-z0-9_][A-Za-z0-9._%+-]{0,63}(?:@|\s?[\[(]at[\])]\s?)"
    r"(?:[A-Za-z0-9-]{1,63}(?:\.|\s?[\[(]dot[\])]\s?)){1,6}[A-Za-z]{2,24}(?![A-Za-z0-9(])",
    re.ASCII,
)
_CHINA = r"(?:(?:\+|00)86[- ]?)?1[3-9]\d(?:[- ]?\d{4}){2}"
_CHINA_LANDLINE = r"(?:(?:\+|00)86[- ]?)?\(?0(?:10|2\d|[3-9]\d{2})(?:\)[ -]?|[ -])[2-8]\d{6,7}"
_AMERICA = r"(?:\+?1[-. ])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[-.])[2-9]\d{2}[-. ]\d{4}"
_ABROAD = r"\+[1-9]\d{0,2}[-. ]?(?:\(\d{1,4}\)[-. ]?)?\d{1,4}(?:[-. ]?\d{2,4}){1,5}"
PHONE = re.compile(rf"(?<![\w+.,=/#-])(?:{_CHINA}|{_CHINA_LANDLINE}|{_AMERICA}|{_ABROAD})(?![\w-]|[.,]\d)", re.ASCII)
IDENTITY = re.compile(
    r"(?<![\w.-])(?:[1-8]\d{5}(?:18|19|20)\d{9}[\dXx]|(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4})(?![\w-]|\.\d)", re.ASCII
)
CARD = re.compile(
    r"(?<![\w.-])[2-6]\d{3}(?:([ -]?)\d{4}(?:\1\d{4}){2}(?:\1\d{1,3})?|([ -]?)\d{6}\2\d{5})(?![\w-]|\.\d)", re.ASCII
)
IPV4 = re.compile(r"(?<![\w.-])(?<![A-Za-z]/)(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\w)", re.ASCII)
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:|:){2,7}(?::?[0-9A-Fa-f]{1,4})?(?![\w:])", re.ASCII)
_VERSION = re.compile(r"(?:\bv(?:er(?:sion)?)?|\brelease|\bbuild|\bfirmware|\bupdate|版本|固件)[\s.:：=号为是]*$", re.IGNORECASE)
_SECTION = re.compile(r"(?:^|\n)[\s#*§(]*$")
_BLOCK = (
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----.{1,20000}?(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
KEY = re.compile(
    rf"{_BLOCK}|(?<![A-Za-z0-9])(?:(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}|gh[pousr]_[A-Za-z0-9]{{36,255}}|github_pat_\w{{22,255}}"
    r"|glpat-[\w-]{20,64}|xox[abeprs]-[A-Za-z0-9-]{10,250}|AIza[\w-]{35}|ya29\.[\w-]{20,500}|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,128}"
    r"|sk-(?:[a-z]{2,8}-)*[A-Za-z0-9_-]{20,200}|hf_[A-Za-z]{30,40}|npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,500}|LTAI[A-Za-z0-9]{12,30}|AKID[A-Za-z0-9]{13,40}"
    r"|SG\.[\w-]{16,64}\.[\w-]{16,64}|eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,2000})(?![A-Za-z0-9])",
    re.ASCII | re.DOTALL,
)
ASSIGNED = re.compile(
    r"(?i)((?:secret|token|passwd|password|api_?key|access_?key|private_?key|密码|口令|密钥)[\w-]*[\"']?\s*(?:[:=：]|=>)\s*[\"'`]?)"
    r"([A-Za-z0-9+/_=-]{20,200})(?![A-Za-z0-9_.(\[])"
)
LEAST_ENTROPY = 3.3
"""Bits a character from which letters and digits that are assigned to a secret are one, and no name or path."""


def _identity(text: str, _: re.Match[str]) -> bool:
    """An American number by form; a Chinese one by date and checksum (GB 11643-1999, ISO 7064 MOD 11-2)."""
    if "-" in text:
        return True
    try:
        born = date(int(text[6:10]), int(text[10:12]), int(text[12:14]))
    except ValueError:
        return False
    total = sum(int(digit) * (2 ** (17 - at) % 11) for at, digit in enumerate(text[:17]))
    return born <= date.today() and "10X98765432"[total % 11] == text[17].upper()


def _card(text: str, _: re.Match[str]) -> bool:
    """Luhn's checksum (ISO/IEC 7812), and the first digits of a network that issues cards."""
    digits = [int(c) for c in text if c.isdigit()]
    total = sum(digits[-1::-2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    number = "".join(map(str, digits))
    known = re.match(r"4|5[1-5]|2(?:2[2-9]|[3-6]|7[01])|3[47]|62|6011|64[4-9]|65|35", number)
    length = 15 if number[:2] in ("34", "37") else 16
    return bool(known) and total % 10 == 0 and len(set(digits)) > 1 and (len(digits) == length or number[:2] == "62")


def _phone(text: str, _: re.Match[str]) -> bool:
    return 8 <= sum(c.isdigit() for c in text) <= 15


def _address(text: str, match: re.Match[str]) -> bool:
    """An address of the public internet, and not a version or a section number."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    before = match.string[max(0, match.start() - 24) : match.start()]
    small = found.version == 4 and max(found.packed) < 20
    if found.version == 6 and text.count(":") < 3:
        return False
    return found.is_global and not _VERSION.search(before) and not (small and _SECTION.search(before))


def _always(text: str, _: re.Match[str]) -> bool:
    return True


Check = Callable[[str, re.Match[str]], bool]
RULES: dict[PersonalKind, list[tuple[re.Pattern[str], Check]]] = {
    "key": [(KEY, _always)],
    "email": [(EMAIL, _always)],
    "id_card": [(IDENTITY, _identity)],
    "bank_card": [(CARD, _card)],
    "phone": [(PHONE, _phone)],
    "ip": [(IPV4, _address), (IPV6, _address)],
}
"""In the order in which they are looked for: what is surer goes first."""
_SECRETS = ["secret", "token", "passw", "apikey", "api_key", "accesskey", "access_key", "privatekey", "private_key"]
_SECRETS += ["密码", "口令", "密钥"]
"""What the name of one holds."""


def replaced(text: str, kinds: Sequence[PersonalKind]) -> tuple[str, Counter[str]]:
    """The text with placeholders, and how many of each kind."""
    from danlu.data.curate.personal_scan import may_hold

    return _replaced(text, kinds, int(may_hold([text])[0]))


def _replaced(text: str, kinds: Sequence[PersonalKind], seen: int) -> tuple[str, Counter[str]]:
    """seen: what the scan says that the text may hold."""
    from danlu.data.curate import personal_scan as scan

    bits: dict[PersonalKind, int] = {"key": scan.KEY, "email": scan.EMAIL, "ip": scan.IP}
    counts: Counter[str] = Counter()
    for kind, rules in RULES.items():
        if kind in kinds and seen & bits.get(kind, scan.NUMBER):
            for pattern, check in rules:
                text = pattern.sub(_replacing(kind, check, counts), text)
        if kind == "key" and kind in kinds and seen & scan.RANDOM and _names_a_secret(text.casefold()):
            text = ASSIGNED.sub(lambda match: _secret(match, counts), text)
    return text, counts


def _names_a_secret(text: str) -> bool:
    return any(name in text for name in _SECRETS)


def placeholder_of(kind: PersonalKind) -> str:
    return f"<{kind.upper()}>"


def put_in(before: str, after: str) -> dict[str, int]:
    """How many placeholders of each kind a text gained."""
    gained = {kind: after.count(placeholder_of(kind)) - before.count(placeholder_of(kind)) for kind in RULES}
    return {kind: count for kind, count in gained.items() if count}


def _replacing(kind: PersonalKind, check: Check, counts: Counter[str]) -> Callable[[re.Match[str]], str]:
    def replacement(match: re.Match[str]) -> str:
        if not check(match[0], match):
            return match[0]
        counts[kind] += 1
        return placeholder_of(kind)

    return replacement


def _secret(match: re.Match[str], counts: Counter[str]) -> str:
    value = match[2]
    shares = [count / len(value) for count in Counter(value).values()]
    random = -sum(share * math.log2(share) for share in shares) >= LEAST_ENTROPY
    if not random or not re.search(r"\d", value) or not re.search("[A-Za-z]", value) or "/" in value[:2]:
        return match[0]
    counts["key"] += 1
    return match[1] + placeholder_of("key")


@dataclass(frozen=True)
class Personal:
    """Changes texts; rejects none."""

    settings: PersonalSection
    name: str = "personal"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        from danlu.data.curate.personal_scan import may_hold

        found: list[Document | Rejected] = []
        seen = may_hold([document.text for document in documents]).tolist()
        for document, bits in zip(documents, seen, strict=True):
            text, counts = _replaced(document.text, self.settings.kinds, bits) if bits else (document.text, Counter())
            found.append(document._replace(text=text) if counts else document)
        return found

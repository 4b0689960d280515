"""Lines that belong to a page rather than to its text: scripts, policies, registrations, navigation. They are taken out.

The rules on scripts, policies, sentences and citations are C4's (Raffel et al. 2020, section 2.2); those on registrations and
navigation are danlu's own, Chinese and English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.curate_sections import BoilerplateSection

POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
REGISTERED = ("icp备", "icp证", "公网安备", "备案", "许可证", "版权所有", "copyright", "©", "all rights reserved")
REGISTRATION = re.compile(
    r"icp[备证]|公网安备|(?:备案|许可证)(?:编?号)?[:：]?\s*\S*\d{5,}|"
    r"版权所有|copyright\s*(?:©|\(c\)|\d{4})|©\s*\d{4}|all rights reserved"
)
LEADING = re.compile(
    r"(?:上一篇|下一篇|上一章|下一章|previous post|next post|相关阅读|延伸阅读|当前位置|您的位置|您现在的位置|所在位置)\s*[:：]"
)
_BETWEEN = re.compile(r"[|｜>»›·•/【】\[\]丨_\s　:：]+")
NAVIGATION_COLUMNS, REGISTRATION_COLUMNS = 80, 200
"""Characters of the longest line that is taken for one."""
_SENTENCE_ENDS = tuple(".!?\"'。！？”’…")


@dataclass(frozen=True)
class Boilerplate:
    """Takes lines out; rejects what nothing is left of."""

    settings: BoilerplateSection
    name: str = "boilerplate"

    def apply(self, documents: Sequence[Document]) -> list[Document | Rejected]:
        rules = rules_of(self.settings)
        found: list[Document | Rejected] = []
        for document in documents:
            text = document.text if document.code else cleaned(document.text, rules, self.settings.citations)
            if text == document.text:
                found.append(document)
            elif text:
                found.append(document._replace(text=text))
            else:
                found.append(Rejected(document, "nothing_left", 0, soft=True))
        return found


@cache
def words() -> tuple[frozenset[str], frozenset[str]]:
    """Words of menus, and those among them that are navigation even as the only one of a line."""
    lines = files("danlu.data.curate").joinpath("navigation.txt").read_text("utf-8").splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    return frozenset(line.removesuffix(" !") for line in listed), frozenset(line[:-2] for line in listed if line.endswith(" !"))


class LineRule(NamedTuple):
    """A rule on lines."""

    fires: Callable[[str], bool]
    """Whether a line without blanks around it, in lower case, is boilerplate."""
    needles: tuple[str, ...] = ()
    """What a text has, one of these at least, if the rule fires on one of its lines; empty: nothing is sure."""


def rules_of(settings: BoilerplateSection) -> list[LineRule]:
    """The rules that are on."""
    rules = {
        "scripts": LineRule(script, ("javascript",)),
        "policies": LineRule(policy, POLICIES),
        "registrations": LineRule(registration, REGISTERED),
        "navigation": LineRule(navigation),
        "unfinished_lines": LineRule(unfinished),
    }
    return [rule for name, rule in rules.items() if getattr(settings, name)]


def cleaned(text: str, rules: Sequence[LineRule], citations: bool) -> str:
    """The text without the lines that a rule names, and without marks of citation."""
    if citations and "[" in text:
        text = CITATION.sub("", text)
    lower = text.lower()
    fires = [rule.fires for rule in rules if not rule.needles or any(needle in lower for needle in rule.needles)]
    if not fires:
        return text
    lines = text.split("\n")
    bare = (line.strip() for line in lower.split("\n"))
    dropped = [number for number, line in enumerate(bare) if line and any(fire(line) for fire in fires)]
    if not dropped:
        return text
    for number in reversed(dropped):
        del lines[number]
    return "\n".join(lines).strip("\n")


def script(line: str) -> bool:
    """Speaks of JavaScript, mostly in asking for it to be switched on."""
    return "javascript" in line


def policy(line: str) -> bool:
    """Speaks of the page's terms, privacy or cookies."""
    return any(phrase in line for phrase in POLICIES)


def registration(line: str) -> bool:
    """Has an ICP number, another registration of a Chinese site, or a copyright."""
    return len(line) <= REGISTRATION_COLUMNS and REGISTRATION.search(line) is not None


def navigation(line: str) -> bool:
    """Is made of words of menus alone, or leads to the page before or after."""
    if len(line) > NAVIGATION_COLUMNS or line[-1] in ".,;。，；！？":
        return False
    menu, alone = words()
    if line in alone or LEADING.match(line):
        return True
    items = [item for item in _BETWEEN.split(line) if item]
    return len(items) > 1 and (menu.issuperset(items) or menu.issuperset(part.strip() for part in line.split("|")))


def unfinished(line: str) -> bool:
    """Does not end as a sentence does, or ends in an ellipsis."""
    return not line.endswith(_SENTENCE_ENDS) or line.endswith(("...", "……"))

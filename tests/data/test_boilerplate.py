"""Lines that belong to a page: what goes, and what looks like it and stays."""

from __future__ import annotations

import pytest

from danlu.data.curate.boilerplate import Boilerplate
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.recipe.curate_sections import BoilerplateSection

GO = {
    "scripts": ["Please enable JavaScript to view this page."],
    "policies": ["By going on you accept our Terms of Use.", "This site uses cookies.", "Privacy Policy"],
    "registrations": [
        "京ICP备12345678号-1", "沪ICP证030173号", "京公网安备 11010802020088号", "Copyright © 2019 A Ltd.", "版权所有：某某公司",
        "网站备案号：12345678", "All rights reserved.", "© 2021 某某网",
    ],
    "navigation": [
        "Home | About us | Contact", "首页 > 关于我们 > 联系我们", "上一篇：如何种树", "返回顶部", "Skip to content", "登录 注册",
        "分享到：微信 微博", "首页 | 新闻 | 论坛", "当前位置：首页 > 正文",
        "News · Blog · Careers", "【大 中 小】 打印本页", "Previous post: On tea",
    ],
}  # fmt: skip
STAY = [
    "Home is where the heart is.", "JavaSkript ist kein Wort.", "他上一篇文章写得很好，下一篇更好。", "首页花了很久。", "搜索",
    "新闻和论坛，我都看。", "News travels fast.",
    "About us there is nothing to tell.", "备案的手续很简单，三天就能办好。", "She said: more, more, more!",
    "大小", "登录", "中",
    "Copyrights differ from patents in many ways.", "Cookies are baked at 180 degrees.", "", "今天的天气。",
]  # fmt: skip


def clean(text: str, code: bool = False, **settings: bool) -> str:
    (found,) = Boilerplate(BoilerplateSection(**settings)).apply([Document(text, 0, "a:1", code=code)])
    assert isinstance(found, Document)
    return found.text


@pytest.mark.parametrize(("rule", "line"), [(rule, line) for rule, lines in GO.items() for line in lines])
def test_lines_that_go(rule: str, line: str) -> None:
    assert clean(f"前文。\n  {line}\nAnd the end.") == "前文。\nAnd the end."
    assert clean(f"前文。\n{line}\nAnd the end.", **{rule: False}) == f"前文。\n{line}\nAnd the end."
    assert clean(f"x\n{line}", code=True) == f"x\n{line}"


def test_lines_that_stay() -> None:
    text = "\n".join(["Text.", *STAY, "Text."])
    assert clean(text) == text


def test_citations_go_without_their_lines() -> None:
    assert clean("Tea[1] is old.[citation needed] a[i] = [x]\n") == "Tea is old. a[i] = [x]\n"
    assert clean("Tea[1] is old.", citations=False) == "Tea[1] is old."


def test_unfinished_lines_go_on_request() -> None:
    text = "A heading\nA sentence.\nbreaks off...\n他说：“好的。”\n断了……"
    assert clean(text) == text
    assert clean(text, unfinished_lines=True) == "A sentence.\n他说：“好的。”"


def test_what_nothing_is_left_of_is_rejected_softly() -> None:
    (found,) = Boilerplate(BoilerplateSection()).apply([Document("登录 注册\n京ICP备12345678号", 0, "a:1")])
    assert isinstance(found, Rejected) and (found.rule, found.soft) == ("nothing_left", True)

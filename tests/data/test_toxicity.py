"""Toxic words through their disguises, the harmless words that hold one, and the stage as a whole."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from random import Random

import pytest

from danlu.data.curate.stage import Rejected
from danlu.data.curate.toxicity.matcher import hits
from danlu.data.curate.toxicity.scan import suspects
from danlu.data.curate.toxicity.stage import Toxicity, toxic_share
from danlu.data.curate.toxicity.word_lists import lists, spellings
from danlu.data.read import Document
from danlu.recipe.text_sections import ToxicitySection

LABELLED = Path(__file__).parents[2] / "benchmarks" / "toxicity.jsonl"
DISGUISES = [
    *(
        "fuck",
        "FUCK",
        "f.u.c.k",
        "f u c k",
        "f-u-c-k",
        "fuuuuck",
        "f*ck",
        "f**k",
        "fu\u200bck",
        "ｆｕｃｋ",
        "fuсk",
        "fück",
        "fucking",
    ),
    *("sh1t", "$hit", "@sshole", "b!tch", "(fuck)", '"fuck"', "fuck!!!", "motherf*cker", "s**t", "wh0re", "b1tches"),
    *("傻逼", "傻*逼", "傻 逼", "煞笔", "傻B", "大煞笔", "操你妈", "艹尼玛", "操你媽", "王八蛋", "你就是个sb", "你妈nmsl"),
]
HARMLESS = [
    *("Scunthorpe", "Penistone", "Middlesex and Essex", "cocktail", "peacock", "assassin", "classic bass passage", "Dickens"),
    *(
        "Hancock",
        "shiitake",
        "document",
        "analysis",
        "therapist",
        "title",
        "Moby Dick",
        "an ass and a cock",
        "class.ass",
        "as.sess",
    ),
    *("pen.is_open", "a55 455 1337", "the hell of war", "I u s e d", "e.g. i.e. a.m.", "**bold** char** a*b x**2", "#!/bin/sh"),
    *(
        "草",
        "草地 草原",
        "操作 体操 曹操",
        "日本",
        "干活",
        "我靠在墙上",
        "妈妈的",
        "他妈妈的",
        "路口交通",
        "中国女排",
        "变态发育",
        "垃圾分类",
    ),
    *(
        "强奸罪",
        "智障人士",
        "sb means somebody",
        "ask sb to do sth 意思是让某人做某事",
        "别装。逼他没用",
        "死锁",
        "黑人",
        "特别的爱",
    ),
]
DISGUISED = {
    "a": "aA@4аàａⓐ", "c": "cCсçｃ", "e": "eE3еé€ẹ", "f": "fFｆḟ", "i": "iI1!і", "k": "kKк", "l": "lL1|", "o": "oO0оοö",
    "s": "sS5$ｓſ", "t": "tT7+", "u": "uUüυ", "妈": "妈媽", "马": "马馬", "你": "你", "逼": "逼", "*": "*",
}  # fmt: skip
HARD = "fuckasholebitnig  ..**--!!11@$0妈你操傻逼的他媽éüсоﬁ™²Ⅷㄅがｆｕ\u0301\u200b\u3000\n😀𝐟İßК"


@pytest.mark.parametrize("word", DISGUISES)
def test_is_found_in_disguise(word: str) -> None:
    assert any(hit.sure for hit in hits(f"this {word} thing" if word.isascii() else f"这 {word} 呢")), word
    assert any(hit.sure for hit in hits(word))


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_words_pass(text: str) -> None:
    assert hits(text) == []


def test_a_word_with_a_harmless_sense_counts_where_it_is_aimed() -> None:
    assert [hit.word for hit in hits("you dick")] == ["dick"]
    assert not hits("Dick said so")
    assert [hit.word for hit in hits("他们都是骗子")] == ["骗子"]
    assert not hits("谨防骗子")


def test_hits_stand_in_order_and_weigh_what_the_lists_say() -> None:
    found = hits("nigger, you fucking idiot")
    assert [(hit.word, hit.weight) for hit in found] == [("nigger", 2.0), ("fucking", 1.0), ("idiot", 0.5)]
    assert [hit.at for hit in found] == [0, 12, 20]


def test_a_stray_word_in_a_long_text_is_below_the_limit() -> None:
    words = "the quick brown fox jumps over the lazy dog " * 40
    assert 0 < toxic_share(words + "shit") < 0.005 < toxic_share(words[:400] + "shit")
    han = "今天天气很好我们去公园散步" * 100
    assert 0 < toxic_share(han + "傻逼") < 0.005 < toxic_share(han[:200] + "傻逼")


def test_spellings_are_every_choice() -> None:
    assert sorted(spellings("{a|b}x{c|}", {})) == ["ax", "axc", "bx", "bxc"]
    assert sorted(spellings("{~ma|d}x", {"ma": "ma|妈"})) == ["dx", "max", "妈x"]


def test_precision_and_recall_on_the_labelled_sentences() -> None:
    """No figure of quality, since whoever wrote the lists wrote them: what works must go on working."""
    rows = [json.loads(line) for line in LABELLED.read_text("utf-8").splitlines()]
    said = Toxicity(ToxicitySection()).apply([Document(row["text"], 0, "") for row in rows])
    pairs = [(isinstance(one, Rejected), bool(row["toxic"])) for one, row in zip(said, rows, strict=True)]
    assert pairs.count((True, True)) >= 0.9 * sum(toxic for _, toxic in pairs)
    assert pairs.count((True, False)) <= 0.1 * sum(said for said, _ in pairs)


def test_the_stage_says_what_it_measured_and_is_never_soft() -> None:
    documents = [Document("A calm text about nothing in particular.", 0, "a"), Document("fuck you, you idiot", 0, "b")]
    stage = pickle.loads(pickle.dumps(Toxicity(ToxicitySection(model=None))))
    kept, rejected = stage.apply(documents)
    assert kept == documents[0]
    assert rejected == Rejected(documents[1], "words", 0.375, soft=False)
    by_model = Toxicity(ToxicitySection(words=None, model=1e-9)).apply(documents)
    assert [one.rule for one in by_model if isinstance(one, Rejected)] == ["model", "model"]
    assert Toxicity(ToxicitySection()).apply([]) == []
    assert Toxicity(ToxicitySection(words=None)).chances(["", "。。。", "1 2 3"]) == [0.0, 0.0, 0.0]


def test_what_the_scan_lets_pass_has_no_hit() -> None:
    """Every word of the lists, as it stands and in random disguises, and random texts of characters that are hard to fold."""
    random = Random(5)
    known = lists()
    words = [*known.english, *(word for word, kind in known.chinese.items() if kind != "pass"), *known.abbreviations]
    words += [" ".join(phrase) for phrases in known.phrases.values() for phrase in phrases]
    texts = [
        text
        for word in words
        for text in (word, f"you {word}!", f"他们真{word}，哈", *(_disguised(word, random) for _ in range(6)))
    ]
    texts += ["".join(random.choices(HARD, k=random.randrange(2, 14))) for _ in range(20_000)]
    hit = {number for number, text in enumerate(texts) if hits(text)}
    assert len(hit) > 8_000
    assert not [texts[number] for number in sorted(hit - set(suspects(texts)))]


def test_the_scan_names_few_ordinary_texts() -> None:
    assert suspects(HARMLESS[:8]) == []
    modules = [path.read_text("utf-8") for path in sorted(Path(json.__file__).parents[1].glob("*.py"))]
    assert len(suspects(modules)) < len(modules) / 4


@pytest.mark.parametrize("limit", [0.05, 0.3, 0.9])
def test_the_first_sentences_decide_nothing_that_all_would_not(limit: float) -> None:
    rows = [json.loads(line)["text"] for line in LABELLED.read_text("utf-8").splitlines()]
    texts = [*rows, *("\n".join(rows[at : at + 7]) for at in range(0, len(rows), 3)), "", "。。。"]
    stage = Toxicity(ToxicitySection(words=None, model=limit))
    said = [isinstance(one, Rejected) for one in stage.apply([Document(text, 0, "") for text in texts])]
    assert said == [chance > limit for chance in stage.chances(texts)]
    assert any(said) and not all(said)


def _disguised(word: str, random: Random) -> str:
    signs = random.choice(["", "", "*", ".", "-", " ", "\u200b", "…", "\u0301", "·"])
    chance = random.random()
    made = []
    for character in word:
        swapped = random.choice(DISGUISED.get(character, character)) if random.random() < chance else character
        made.append(swapped * random.choice([1, 1, 1, 1, 3]) if random.random() < 0.3 else swapped)
    return random.choice(["", "(", "!", "他", "a "]) + signs.join(made) + random.choice(["", "!", "...", "的", "!!", " 1"])

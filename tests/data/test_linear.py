"""The text models: against plain Python of the same definition, and on texts whose classes are known."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from danlu.cli import cli
from danlu.data.curate.linear.fit import auc, calibration_error, fit, measured, platt
from danlu.data.curate.linear.model import LONGEST, Linear, sigmoid
from danlu.data.curate.quality_model import QualityModel
from danlu.data.curate.stage import Rejected
from danlu.data.read import Document
from danlu.errors import UserError
from danlu.recipe.text_sections import QualityModelSection

from .conftest import write_jsonl

ENGLISH = [
    "river",
    "stone",
    "cloud",
    "window",
    "teacher",
    "garden",
    "letter",
    "paper",
    "bridge",
    "summer",
    "silver",
    "quiet",
    "morning",
    "yellow",
    "market",
]
CHINESE = "河流石头云窗户老师花园信纸桥夏天银安静早晨黄市场"


def texts(good: bool, count: int, seed: int) -> list[str]:
    """English and Chinese; the good ones have one word order, the bad ones end in a sign that the others lack."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        if rng.random() < 0.5:
            made.append(" ".join(rng.choices(ENGLISH, k=20)) + (" of course." if good else " click here!"))
        else:
            made.append("".join(rng.choices(CHINESE, k=30)) + ("是这样。" if good else "点击这里！"))
    return made


@pytest.fixture(scope="module")
def model() -> Linear:
    return fit(texts(True, 300, 1) + texts(False, 300, 2), np.repeat([1, 0], 300), bits=14)


def test_it_learns_both_languages_and_says_how_well(model: Linear) -> None:
    good, bad = model.chances(texts(True, 50, 3)), model.chances(texts(False, 50, 4))
    assert good.min() > 0.5 > bad.max()
    assert model.facts["auc"] > 0.99 and model.facts["texts"] == 600
    assert model.facts["trained"] + 2 * model.facts["held_out"] == pytest.approx(600, abs=60)


def test_the_same_texts_and_seed_give_the_same_model(model: Linear) -> None:
    again = fit(texts(True, 300, 1) + texts(False, 300, 2), np.repeat([1, 0], 300), bits=14)
    assert (again.weights == model.weights).all() and again.facts == model.facts and again.shift == model.shift


def test_held_out_figures_are_of_texts_it_has_not_seen() -> None:
    """Classes drawn at random cannot be told apart, however many weights there are."""
    same = texts(True, 400, 5)
    labels = np.array([random.Random(text).random() < 0.5 for text in same]).astype(int)
    assert abs(fit(same, labels, bits=16).facts["auc"] - 0.5) < 0.25


def test_logits_are_the_sum_over_counted_features() -> None:
    """One weight a feature: with all weights 1 the logit is the sum of square roots of counts over their length."""
    ones = Linear(np.ones(1 << 18, np.float32), 0.5)
    # "ab a": grams a b _ a ab b_ _a ab_ b_a ab_a, and the end's blank: _ a_ _a_ b_a_; words ab, a; pair ab a.
    grams = ["a", "b", " ", "a", "ab", "b ", " a", "ab ", "b a", "ab a", " ", "a ", " a ", "b a ", "<ab>", "<a>", "<ab|a>"]
    counts = [grams.count(gram) for gram in set(grams)]
    wanted = 0.5 + sum(math.sqrt(count) for count in counts) / math.sqrt(sum(counts))
    assert ones.logits(["ab a", "AB\t\n a", "ＡＢ a"]) == pytest.approx([wanted] * 3, rel=1e-5)


def test_empty_and_strange_texts_score(model: Linear) -> None:
    chances = model.chances(["", "\n\n", "\U0001f600\ud800"[:1], "\x00", "x" * (LONGEST + 5)])
    assert np.isfinite(chances).all() and ((chances >= 0) & (chances <= 1)).all()
    assert len(model.chances([])) == 0


def test_auc_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, 60), rng.integers(0, 2, 60)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


def test_calibration_finds_slope_and_shift() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, 20_000)
    labels = (rng.random(20_000) < sigmoid(0.5 * logits - 1)).astype(float)
    assert platt(logits, labels) == pytest.approx((0.5, -1.0), abs=0.06)
    assert calibration_error(sigmoid(0.5 * logits - 1), labels) < 0.02 < calibration_error(sigmoid(logits), labels)


def test_a_saved_model_scores_the_same(model: Linear, tmp_path: Path) -> None:
    model.save(tmp_path / "m.safetensors")
    again = Linear.load(tmp_path / "m.safetensors")
    some = texts(True, 5, 6) + texts(False, 5, 7)
    assert (again.chances(some) == model.chances(some)).all() and again.facts == model.facts


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    save_file({"weights": np.zeros(4, np.float16)}, str(tmp_path / "other"))
    save_file(
        {"weights": np.full(3, np.nan, np.float16)}, str(tmp_path / "nan"), metadata={"format": "danlu-linear-1", "model": "{}"}
    )
    for name in ("text", "other", "nan", "absent"):
        with pytest.raises(UserError, match="train-scorer"):
            Linear.load(tmp_path / name)


def test_the_stage_scores_and_leaves_out(model: Linear, tmp_path: Path) -> None:
    model.save(tmp_path / "m.safetensors")
    good, bad = Document(texts(True, 1, 8)[0], 0, "a"), Document(texts(False, 1, 9)[0], 0, "b")
    kept, rejected = QualityModel(QualityModelSection(path=str(tmp_path / "m.safetensors"))).apply([good, bad])
    assert isinstance(kept, Document) and kept.score > 0.5
    assert isinstance(rejected, Rejected) and (rejected.rule, rejected.soft) == ("minimum", True) and rejected.value < 0.5
    scored = QualityModel(QualityModelSection(path=str(tmp_path / "m.safetensors"), minimum=None)).apply([bad])
    assert isinstance(scored[0], Document) and scored[0].score == pytest.approx(rejected.value, abs=1e-4)


def test_the_model_that_danlu_carries_tells_text_from_rubbish() -> None:
    fine = [
        "The committee met on Tuesday to discuss the repair of the old bridge. Several members said that the cost had doubled "
        "since the first estimate, and asked whether a new bridge would be cheaper in the long run.",
        "昨天下午，市政府召开会议，讨论旧桥的维修问题。几位代表认为，费用比最初的估算增加了一倍，应当考虑修建新桥。",
        "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / len(values)\n",
    ]
    rubbish = [
        "Home | About | Login | Cart | Home | Contact | Sitemap | Privacy | Terms | Next | Previous | Share | Tweet | Login",
        "首页 > 产品中心 > 联系我们 | 在线咨询 | 网站地图 | 友情链接 | 版权所有 京ICP备12345678号 | 返回顶部 | 分享到微博",
        "bridge the the Tuesday on said committee asked doubled and estimate that old whether of cost first repair in",
    ]
    scores = QualityModel(QualityModelSection(minimum=None)).apply([Document(text, 0, "") for text in fine + rubbish])
    values = [one.score for one in scores if isinstance(one, Document)]
    assert min(values[:3]) > 0.5 > max(values[3:])


def test_train_scorer_from_files(tmp_path: Path) -> None:
    good, bad = write_jsonl(tmp_path / "good.jsonl", texts(True, 60, 10)), tmp_path / "bad"
    bad.mkdir()
    for number, text in enumerate(texts(False, 60, 11)):
        (bad / f"{number}.txt").write_text(text, encoding="utf-8")
    to = tmp_path / "m.safetensors"
    done = CliRunner().invoke(cli, ["data", "train-scorer", "--good", str(good), "--bad", str(bad), "--to", str(to), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["texts"] == 120
    assert Linear.load(to).facts == json.loads(done.stdout)


def test_train_scorer_says_what_is_wrong(tmp_path: Path) -> None:
    few, some = write_jsonl(tmp_path / "few.jsonl", ["a", "b", "a"]), write_jsonl(tmp_path / "some.jsonl", texts(True, 30, 1))
    for good, bad, to, words in (
        (few, some, "m", "--good: 2 different texts; at least 20"),
        (some, tmp_path / "absent", "m", "--bad: .*no such file"),
        (some, some, "m", "0 different texts of the bad class"),
        (some, few, "no/m", "no folder"),
        (some, few, ".", "is a folder"),
    ):
        done = CliRunner().invoke(
            cli, ["data", "train-scorer", "--good", str(good), "--bad", str(bad), "--to", str(tmp_path / to)]
        )
        assert isinstance(done.exception, UserError)
        with pytest.raises(UserError, match=words):
            raise done.exception


def test_what_cannot_be_measured_is_said_so() -> None:
    found = measured(np.array([0.1, 0.2]), np.array([0.0, 0.0]))
    assert found == {"auc": None, "precision": None, "recall": None, "calibration_error": 0.15}

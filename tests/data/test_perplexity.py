"""The model of perplexity: against plain Python of the same formula, and on texts that are in order or not."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from danlu.cli import cli
from danlu.data.arrays import Array
from danlu.data.curate.linear.model import characters
from danlu.data.curate.perplexity import kernels
from danlu.data.curate.perplexity.model import Ngrams, fit
from danlu.data.curate.quality_model import QualityModel
from danlu.data.curate.stage import Rejected
from danlu.data.dedup.fold import table as folds
from danlu.data.read import Document
from danlu.errors import UserError
from danlu.recipe.text_sections import QualityModelSection

from .conftest import write_jsonl

WORDS = [
    "river",
    "stone",
    "smoke",
    "window",
    "teacher",
    "garden",
    "letter",
    "bridge",
    "河流",
    "石头",
    "窗户",
    "老师",
    "花园",
    "银桥",
]
START = "\0" * (kernels.ORDER - 1)


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=30)) + "." for _ in range(count)]


def expected(learnt: list[str], text: str) -> float:
    """Interpolation after Witten and Bell with dictionaries of strings; a text begins as after a character of its own."""
    grams: Counter[str] = Counter()
    behind: dict[str, set[str]] = defaultdict(set)
    for one in learnt:
        grams.update(START[:n] for n in range(1, kernels.ORDER))
        for at, character in enumerate(one):
            before = (START + one[:at])[-(kernels.ORDER - 1) :]
            grams[""] += 1
            for n in range(kernels.ORDER):
                context = before[len(before) - n :]
                grams[context + character] += 1
                behind[context].add(character)
    nats = 0.0
    for at, character in enumerate(text):
        before = (START + text[:at])[-(kernels.ORDER - 1) :]
        chance = 1 / kernels.CHARACTERS
        for n in range(kernels.ORDER):
            context = before[len(before) - n :]
            if kinds := len(behind[context]):
                chance = (grams[context + character] + kinds * chance) / (grams[context] + kinds)
        nats -= math.log(chance)
    return math.exp(nats / len(text.encode()))


def test_equals_the_formula_in_plain_python() -> None:
    learnt, others = [text[:60] for text in texts(8, 1)], [*texts(5, 2), "unseen words, 从未见过", "xyz", "河"]
    found = Ngrams(table_of(learnt)).perplexities(others)
    assert found == pytest.approx([expected(learnt, text) for text in others], rel=1e-6)
    assert found[0] < 4 < 20 < found[6]


def test_the_chances_of_all_characters_sum_to_one() -> None:
    learnt = texts(40, 1)
    table = table_of(learnt)
    alphabet = {c for text in learnt for c in text}
    for context in ("river st", "窗户 老", "qqqq"):

        def chance(character: str, context: str = context) -> float:
            return math.exp(_nats(table, context) - _nats(table, context + character))

        unseen = (kernels.CHARACTERS - len(alphabet)) * chance("猫")
        assert sum(map(chance, alphabet)) + unseen == pytest.approx(1, abs=1e-6)


def table_of(learnt: list[str]) -> Array:
    table = np.zeros((1 << 22, 2), np.uint32)
    codes, ends = characters(learnt)
    kernels.count(codes, ends, folds(), 22, table)
    return table


def _nats(table: Array, text: str) -> float:
    return math.log(float(Ngrams(table).perplexities([text])[0])) * len(text.encode())


def test_order_is_told_from_disorder_in_both_scripts() -> None:
    model = fit(texts(300, 3))
    assert model.facts["trained"] + model.facts["held_out"] == model.facts["texts"] == 300
    assert 1 < model.facts["perplexity_50"] <= model.facts["perplexity_99"] < 3
    rng = random.Random(0)
    for good in texts(3, 9):
        assert 2 * model.perplexities([good])[0] < model.perplexities(["".join(rng.sample(good, len(good)))])[0]
    assert model.perplexities(["", " \n"]).tolist() == [1.0, 1.0]
    assert fit(list(reversed(texts(300, 3)))).table.tobytes() == model.table.tobytes()


def test_the_verb_writes_what_the_stage_reads(tmp_path: Path) -> None:
    good, to = write_jsonl(tmp_path / "good.jsonl", texts(200, 4)), tmp_path / "p.safetensors"
    ran = CliRunner().invoke(cli, ["data", "train-scorer", "--perplexity", "--good", str(good), "--to", str(to), "--json"])
    assert ran.exit_code == 0, ran.output
    limit = json.loads(ran.output)["perplexity_99"]
    settings = QualityModelSection(minimum=None, perplexity_path=str(to), most_perplexity=2 * limit)
    fine, broken = QualityModel(settings).apply([Document(texts(1, 8)[0], 0, "a"), Document("qx zzkw vvpq 穷 jjj", 0, "b")])
    assert isinstance(fine, Document)
    assert isinstance(broken, Rejected)
    assert (broken.rule, broken.soft) == ("most_perplexity", True)
    assert isinstance(broken.value, float) and broken.value > 2 * limit


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="most_perplexity is given without perplexity_path"):
        QualityModelSection(most_perplexity=3.0)
    with pytest.raises(ValueError, match="perplexity_path is given without most_perplexity"):
        QualityModelSection(perplexity_path="x")
    save_file({"table": np.zeros((3, 2), np.uint32)}, tmp_path / "odd", {"format": "danlu-ngrams-1", "facts": "{}"})
    save_file({"weights": np.zeros(4, np.float16)}, tmp_path / "other", {"format": "danlu-linear-1"})
    (tmp_path / "torn").write_bytes((tmp_path / "odd").read_bytes()[:40])
    for name in ("odd", "other", "torn", "absent"):
        with pytest.raises(UserError, match="train-scorer --perplexity"):
            Ngrams.load(tmp_path / name)
    with pytest.raises(UserError, match="at least 20"):
        fit(["one", "two"])
    good = write_jsonl(tmp_path / "good.jsonl", ["a", "b"])
    for options, said in (([], "--perplexity"), (["--bad", str(good), "--perplexity"], "--bad"), (["--perplexity"], "--good: 2")):
        ran = CliRunner().invoke(cli, ["data", "train-scorer", "--good", str(good), "--to", str(tmp_path / "m"), *options])
        assert isinstance(ran.exception, UserError)
        assert said in str(ran.exception)

"""Each audit finds a fault that is put into a recipe or its data, and says nothing of the healthy twin."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from danlu import auditing, auto
from danlu.data import order, tokenizer
from danlu.data.prepare import prepare
from danlu.data.split import place
from danlu.doctor.audit import sample
from danlu.doctor.audit.audit import all_audits, audited
from danlu.doctor.audit.checks import chat_template, ends_of_documents
from danlu.doctor.audit.checks.usual_rates import bounds
from danlu.doctor.audit.copies import copies
from danlu.doctor.audit.material import Material
from danlu.doctor.audit.sample import of_sources, of_stream
from danlu.doctor.finding import Severity
from danlu.errors import UserError
from danlu.model.counts import parameter_count
from danlu.model.presets import PRESETS
from danlu.recipe import Recipe, parse
from danlu.run_folder import RunFolder
from danlu.watch import probes

OF_TUNING = {"chat_template"}
SHAPE = {"layers": 4, "hidden_size": 256, "ffn_size": 688, "heads": 4, "max_sequence_length": 512}
ENGLISH = [
    "the",
    "of",
    "and",
    "furnace",
    "iron",
    "water",
    "heat",
    "to",
    "in",
    "a",
    "steel",
    "that",
    "it",
    "was",
    "melts",
    "flows",
    "turns",
    "hammer",
    "coal",
    "fire",
    "is",
    "on",
    "with",
    "as",
]
FRENCH = [
    "le",
    "la",
    "les",
    "des",
    "fourneau",
    "fer",
    "eau",
    "chaleur",
    "dans",
    "une",
    "acier",
    "qui",
    "il",
    "était",
    "fond",
    "coule",
    "tourne",
    "marteau",
    "charbon",
    "feu",
    "est",
    "sur",
]
Texts = Sequence[str]
Make = Callable[..., Material]


def writing(words: Sequence[str], count: int, seed: int = 0, length: int = 60) -> list[str]:
    """Documents of random words, none a copy of another."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randrange(length // 2, length * 3 // 2))) for _ in range(count)]


def held_out(texts: Texts, fraction: float = 0.2) -> list[str]:
    return [text for text in texts if place(text).split < fraction]


def material(
    folder: Path, texts: Texts, prepared: bool = False, model: dict[str, Any] | None = None, **sections: Any
) -> Material:
    """Of a recipe over texts, prepared or not."""
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    train = {"device": "cpu", "steps": 20, "global_batch": 4, **sections.pop("train", {})}
    data = {"sources": [{"path": str(corpus)}], "tokenizer": {"train": {"vocab_size": 500}}, "sequence_length": 32}
    data |= {"validation_fraction": 0.2, **sections.pop("data", {})}
    recipe = parse({"name": "audited", "model": {**SHAPE, **(model or {})}, "data": data, "train": train, **sections})
    run = RunFolder(folder / "runs" / "audited")
    if prepared:
        run.path.mkdir(parents=True)
        prepare(recipe, run.data, lambda line: None)
    return auditing.material(recipe, run.path)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return partial(material, tmp_path)


@pytest.fixture(scope="module")
def english() -> list[str]:
    return writing(ENGLISH, 200)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Material:
    """The prepared twin of every fault; the optimizer as an engine tells it."""
    made = material(tmp_path_factory.mktemp("healthy"), english, prepared=True)
    return replace(made, optimizer={"decayed_vectors": 0.0})


def named(made: Material) -> set[str]:
    """Audits that warn, symptoms included; none may fail by a mistake."""
    found = audited(made)
    assert not [why for why in found.unjudged.values() if "mistake" in why]
    every = [one for finding in found.findings for one in (finding, *finding.symptoms)]
    for one in every:  # each patch makes a recipe
        parse(
            made.recipe.model_dump(mode="python", exclude_unset=True),
            [f"{field}={json.dumps(value)}" for field, value in one.patch.items()],
        )
    return {one.rule for one in every if one.severity >= Severity.WARNING}


def test_a_healthy_recipe_is_judged_by_every_audit_and_nothing_is_said(healthy: Material) -> None:
    found = audited(healthy)
    assert not found.findings
    assert set(found.unjudged) == OF_TUNING
    assert len(found.silent) == len(all_audits()) - len(OF_TUNING)


def test_copies_that_straddle_the_split_are_named(make: Make, english: list[str]) -> None:
    changed = [f"{text} again" for text in held_out(english)]
    copied = [text for text in changed if place(text).split >= 0.2][:10]
    assert "overlap" in named(make([*english, *copied]))


def test_a_few_short_phrases_are_no_overlap(make: Make, english: list[str]) -> None:
    assert "overlap" not in named(make([*english, *(["see above", "see above!"] * 10)]))


def test_a_corpus_of_copies_is_named_and_explains_its_overlap(make: Make, english: list[str]) -> None:
    texts = [f"{text} {number}" for text in english[:60] for number in range(4)]
    found = {finding.rule: finding for finding in audited(make(texts)).findings}
    assert found["duplicates"].patch == {"data.curate.dedup.threshold": 0.8}
    assert [one.rule for one in found["duplicates"].symptoms] == ["overlap"]


def test_repeating_a_source_on_purpose_is_no_fault(make: Make, english: list[str], tmp_path: Path) -> None:
    source = {"path": str(tmp_path / "corpus.jsonl"), "weight": 3.0}
    found = audited(make(english, prepared=True, data={"sources": [source]}))
    assert "on purpose" in found.unjudged["duplicates"]


def test_copies_agree_with_jaccard_by_hand(english: list[str]) -> None:
    def shingles(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}

    base = " ".join(random.Random(5).choices(ENGLISH, k=200)).split()
    texts = list(english[:20])
    for cut in (2, 6, 12, 16, 40, 100):  # ever further from the base
        texts.append(" ".join([*base[cut:], *random.Random(cut).choices(ENGLISH, k=cut)]))
    owners = copies(texts)
    for number, owner in enumerate(owners):
        best = max(
            (len(shingles(texts[number]) & shingles(other)) / len(shingles(texts[number]) | shingles(other)))
            for at, other in enumerate(texts)
            if at != number
        )
        assert (owners.count(owner) > 1) == (best >= 0.8)


def test_validation_in_another_language_is_one_finding(make: Make, english: list[str]) -> None:
    french = held_out(writing(FRENCH, 300, seed=1, length=150))
    mixed = [*(text for text in english if place(text).split >= 0.2), *french]
    found = {finding.rule: finding for finding in audited(make(mixed, prepared=True)).findings}
    assert set(found) == {"shift_of_languages"}
    assert {one.rule for one in found["shift_of_languages"].symptoms} == {"shift_of_tokens", "shift_of_lengths"}


def test_validation_of_other_words_or_lengths(make: Make, english: list[str]) -> None:
    train = [text for text in english if place(text).split >= 0.2]
    other = held_out(writing(ENGLISH[:8], 300, seed=2, length=20))
    assert {"shift_of_tokens", "shift_of_lengths"} <= named(make([*train, *other], prepared=True))


def test_a_shift_that_twenty_documents_make_by_chance_is_none(make: Make) -> None:
    """Documents of one subject each: their tokens differ wildly, and so do any two halves of them."""
    draw = random.Random(3)
    words = [f"{draw.choice(ENGLISH)}{number}" for number in range(400)]
    texts = [" ".join(draw.choices(draw.sample(words, 6), k=40)) for _ in range(150)]
    assert not {"shift_of_tokens", "shift_of_lengths", "shift_of_languages"} & named(make(texts, prepared=True))


def test_too_few_documents_are_not_enough_data(make: Make) -> None:
    found = audited(make(writing(ENGLISH, 40)))
    assert not found.findings
    assert {"overlap", "duplicates", "shift_of_lengths", "shift_of_languages"} <= set(found.unjudged)


def test_a_tokenizer_of_another_language_is_named(make: Make, english: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer.save(folder, tokenizer.train(english, 400), tokenizer.BEGIN, tokenizer.END)
    chinese = ["炉火纯青百炼成钢模型训练数据" * 3 + str(number) for number in range(120)]
    data = {"tokenizer": {"path": str(folder)}}
    assert "tokenizer_coverage" in named(make(chinese, data=data))
    assert "tokenizer_coverage" not in named(make(english, data=data))


def test_unknown_tokens_are_named(make: Make, english: list[str], tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate([*ENGLISH[:20], "[UNK]", "<|end|>"])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    data = {"tokenizer": {"path": str(tmp_path / "tokenizer.json"), "end": "<|end|>"}}
    finding = next(one for one in audited(make(english, data=data)).findings if one.rule == "tokenizer_coverage")
    missing = sum(word not in words for text in english if place(text).split >= 0.2 for word in text.split())
    total = sum(len(text.split()) for text in english if place(text).split >= 0.2)
    assert f"{missing / total:.1%}" in finding.why[0].en


def test_padding_in_the_text_is_named(make: Make, english: list[str]) -> None:
    padded = [text + " _" * (20 if number % 3 else 400) for number, text in enumerate(english)]
    assert "ends_of_documents" in named(make(padded, prepared=True))


def test_shards_whose_documents_have_no_end_are_named(healthy: Material) -> None:
    prepared = healthy.need_prepared()
    other = {**prepared.index, "tokenizer": {**prepared.index["tokenizer"], "end_id": 7}}
    assert "ends_of_documents" in named(replace(healthy, prepared=replace(prepared, index=other)))


def test_an_order_that_is_not_shuffled_is_named(healthy: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "sample_indices", lambda positions, samples, seed: positions % samples)
    assert named(healthy) == {"order_of_samples"}


@pytest.mark.parametrize("seed", range(5))
def test_no_seed_makes_an_order_that_looks_unshuffled(healthy: Material, seed: int) -> None:
    recipe = healthy.recipe.model_copy(update={"train": healthy.recipe.train.model_copy(update={"seed": seed})})
    assert not named(replace(healthy, recipe=recipe))


@pytest.mark.parametrize(
    ("audit", "model", "sections"),
    [
        ("model_shape", {"hidden_size": 2048}, {}),  # MLP of another model
        ("model_shape", {"hidden_size": 4096, "ffn_size": 11008, "heads": 32, "layers": 2}, {}),
        ("model_shape", {"heads": 64}, {}),
        ("usual_rates", {}, {"train": {"optimizer": {"learning_rate": 0.3}}}),
        ("usual_rates", {}, {"train": {"optimizer": {"learning_rate": 1e-6}}}),
        ("usual_batches", {}, {"train": {"global_batch": 1 << 18}, "memory": {"micro_batch": 4}}),
        ("weight_decay", {}, {"train": {"optimizer": {"weight_decay": 10.0}}}),
        ("rotary_base", {"rope_theta": 4.0}, {}),
        ("rotary_rounding", {"max_sequence_length": 4_000_000}, {}),
        ("memory_plan", {"preset": "llama-3.1-405b", "layers": 126, "hidden_size": 16384, "ffn_size": 53248, "heads": 128}, {}),
    ],
)
def test_settings_that_cannot_be_right(
    make: Make, english: list[str], audit: str, model: dict[str, Any], sections: dict[str, Any]
) -> None:
    texts = english[:40]
    made = make(texts, model={**model, "vocab_size": 500}, **sections)
    assert audit in named(made)
    assert audit not in named(make(texts, model={"vocab_size": 500}))


def test_every_preset_is_a_usual_shape(healthy: Material) -> None:
    for shape in PRESETS.values():
        found = audited(replace(healthy, shape=shape), [one for one in all_audits() if one.id.startswith(("model", "rotary"))])
        assert not [one for one in found.findings if "tokenizer" not in one.why[0].en]


def test_norms_that_are_decayed_are_named(healthy: Material) -> None:
    assert named(replace(healthy, optimizer={"decayed_vectors": 9.0})) == {"weight_decay"}


def test_more_passes_than_help_are_named(healthy: Material) -> None:
    train = healthy.recipe.train.model_copy(update={"steps": 100_000})
    many = replace(healthy, recipe=healthy.recipe.model_copy(update={"train": train}))
    finding = audited(many).findings[0]
    assert finding.rule == "repeated_epochs"
    tokens = healthy.need_prepared().train.tokens
    assert finding.patch["train.steps"] * 4 * 32 <= 4 * tokens < (finding.patch["train.steps"] + 1) * 4 * 32


def test_a_full_disk_is_named(healthy: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    one = 12 * parameter_count(healthy.need_shape())
    monkeypatch.setattr(probes, "disk_free_bytes", lambda folder: 4 * one)
    assert not named(healthy)
    monkeypatch.setattr(probes, "disk_free_bytes", lambda folder: 4 * one - 1)
    finding = audited(healthy).findings[0]
    assert (finding.rule, finding.severity, finding.patch) == ("checkpoint_room", Severity.WARNING, {"checkpoint.keep": 2})
    monkeypatch.setattr(probes, "disk_free_bytes", lambda folder: one - 1)
    assert audited(healthy).findings[0].severity == Severity.CRITICAL


def test_a_machine_that_the_planner_does_not_know_is_not_judged(
    make: Make, english: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "prediction", lambda recipe, shape: None)
    assert "memory_plan" in audited(make(english[:40], model={"vocab_size": 500})).unjudged


def test_a_sample_of_a_long_stream_is_spread_and_whole(healthy: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "STRETCH", 256)
    stream = healthy.need_prepared().train
    found = of_stream(stream, healthy.tokenizer, 1024)
    every = {tuple(one.tolist()) for one in of_stream(stream, healthy.tokenizer, stream.tokens).framed}
    assert {tuple(one.tolist()) for one in found.framed} <= every
    assert 0.1 < found.share < 0.6


def test_a_sample_of_sources_comes_from_every_file(healthy: Material, tmp_path: Path, english: list[str]) -> None:
    for number in range(4):
        lines = (json.dumps({"text": f"{number} {text}"}) + "\n" for text in english)
        (tmp_path / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    data = healthy.recipe.data.model_copy(update={"sources": parse(recipe_over(tmp_path)).data.sources})
    train, _ = of_sources(data, 20_000)
    assert {text[0] for text in train.texts} == set("0123")
    assert np.isclose(sum(map(len, train.texts)), 20_000 * 0.8, rtol=0.3)


def recipe_over(folder: Path) -> dict[str, Any]:
    return {"name": "x", "model": SHAPE, "data": {"sources": [{"path": str(folder)}]}}


def test_data_that_other_settings_made_is_refused(make: Make, english: list[str]) -> None:
    made = make(english, prepared=True)
    data = made.recipe.data.model_copy(update={"validation_fraction": 0.5})
    with pytest.raises(UserError, match="validation_fraction"):
        auditing.material(made.recipe.model_copy(update={"data": data}), made.folder)


def test_curated_text_is_not_judged_before_it_is_prepared(make: Make, english: list[str]) -> None:
    found = audited(make(english, data={"curate": {}}))
    assert "curation" in found.unjudged["overlap"]


def test_a_mistake_in_one_audit_ends_no_other(healthy: Material) -> None:
    def broken(made: Material) -> None:
        raise ZeroDivisionError("planted")

    def lacking(made: Material) -> None:
        raise ModuleNotFoundError(name="eldc")

    first = all_audits()[0]
    found = audited(
        healthy, [replace(first, id="broken", check=broken), replace(first, id="lacking", check=lacking), *all_audits()]
    )
    assert "planted" in found.unjudged["broken"]
    assert found.unjudged["lacking"] == "the package eldc is not installed"
    assert len(found.silent) == len(all_audits()) - len(OF_TUNING)


def tuned(*overrides: str) -> Recipe:
    tree = {"name": "tuned", "model": {"hugging_face": "weights"}, "data": {"sources": [{"path": "x"}]}}
    return parse(tree, ("train.objective=sft", "data.tokenizer.path=weights", *overrides))


@pytest.mark.parametrize(
    ("rate", "overrides", "parameters", "told"),
    [
        (5e-5, (), 1.35e8, False),
        (6e-4, (), 1.35e8, True),  # of its pre-training
        (3e-4, (), 7e9, True),
        (3e-4, ("train.lora={}",), 7e9, False),
        (3e-4, ("train.objective=pretrain",), 7e9, False),
        (1e-9, (), 1.35e8, True),
        (5e-4, (), 1e6, False),
    ],
)
def test_the_rate_of_a_pre_training_is_too_much_for_a_tuning(
    rate: float, overrides: tuple[str, ...], parameters: float, told: bool
) -> None:
    low, usual, high = bounds(tuned(*overrides), parameters)
    assert (not low <= rate <= high) == told and low < usual < high


@pytest.mark.parametrize("wrong", [False, True])
def test_the_end_of_an_answer_is_followed_by_what_the_template_puts_there(tmp_path: Path, wrong: bool) -> None:
    write = "{% for m in messages %}{{ m.role + ':' + m.content + eos_token + '\n' }}{% endfor %}"
    write += "{% if add_generation_prompt %}assistant:{% endif %}"
    data = tokenizer.train(["heat the furnace with coal, user: assistant: 0123456789"] * 9, 300)
    tokenizer.save(tmp_path, data, None, tokenizer.END, {"chat_template": write})
    turns = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"heat {n}"}] for n in range(60)]
    source = tmp_path / "talk.jsonl"
    source.write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    shape = "model={layers: 2, hidden_size: 32, ffn_size: 64, heads: 2}"
    recipe = tuned(
        shape, f"data.sources=[{{path: '{source}'}}]", f"data.tokenizer.path={tmp_path}", "data.validation_fraction=0.2"
    )
    prepared = prepare(recipe, tmp_path / "data", lambda line: None)
    if wrong:
        prepared = replace(prepared, index={**prepared.index, "tokenizer": {**prepared.index["tokenizer"], "end_id": 299}})
    found = audited(Material(recipe, tmp_path, prepared=prepared), [ends_of_documents.AUDIT])
    assert not found.unjudged and bool(found.findings) == wrong


OURS = "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(("place", "named", "told"), [("weights", "", False), ("weights", "chatml", True), ("other", "", True)])
def test_a_template_that_the_weights_do_not_know(tmp_path: Path, place: str, named: str, told: bool) -> None:
    data = tokenizer.train(["a furnace"] * 9, 300)
    for folder in ("weights", "other"):
        (tmp_path / folder).mkdir()
    tokenizer.save(tmp_path / "weights", data, None, tokenizer.END, {"chat_template": OURS})
    tokenizer.save(tmp_path / "other", data, None, tokenizer.END, {"chat_template": OURS.replace("<", "[")})
    overrides = [f"model.hugging_face={tmp_path / 'weights'}", f"data.tokenizer.path={tmp_path / place}"]
    recipe = tuned(*overrides, *([f"data.chat.template={named}"] if named else []))
    found = audited(Material(recipe, tmp_path), [chat_template.AUDIT])
    assert not found.unjudged and bool(found.findings) == told
    for finding in found.findings:
        mended = parse(
            recipe.model_dump(exclude_unset=True), [f"{key}={json.dumps(value)}" for key, value in finding.patch.items()]
        )
        assert not audited(Material(mended, tmp_path), [chat_template.AUDIT]).findings

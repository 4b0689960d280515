"""Settings that do nothing are named, and no others are."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.recipe import dump, ignored, parse

Tree = dict[str, Any]
ROPE = "original_max_sequence_length: 512"


@pytest.mark.parametrize(
    ("overrides", "fields", "why"),
    [
        (["train.schedule={name: constant, final_ratio: 0}"], ["train.schedule.final_ratio"], "train.schedule.name is constant"),
        (
            ["generate={temperature: 0, top_k: 5, top_p: 0.5, seed: 3}"],
            ["generate.top_k", "generate.top_p", "generate.seed"],
            "generate.temperature is 0",
        ),
        (
            ["data.validation_fraction=0", "stages=[prepare, train]", "train.evaluate_tokens=9"],
            ["train.evaluate_tokens"],
            "data.validation_fraction is 0",
        ),
        (
            ["model.rope_scaling={kind: linear, factor: 2, original_max_sequence_length: 512, beta_fast: 8, beta_slow: 2}"],
            [f"model.rope_scaling.{name}" for name in ("original_max_sequence_length", "beta_fast", "beta_slow")],
            "model.rope_scaling.kind is linear",
        ),
        (
            [f"model.rope_scaling={{kind: llama3, factor: 2, {ROPE}, low_frequency_factor: 2, attention_factor: 2}}"],
            ["model.rope_scaling.attention_factor"],
            "model.rope_scaling.kind is llama3",
        ),
        (
            [f"model.rope_scaling={{kind: yarn, factor: 2, {ROPE}, low_frequency_factor: 2, high_frequency_factor: 8}}"],
            ["model.rope_scaling.low_frequency_factor", "model.rope_scaling.high_frequency_factor"],
            "model.rope_scaling.kind is yarn",
        ),
        (["train.device=cpu", "memory.offload_optimizer=host"], ["memory.offload_optimizer"], "a CPU computes in host memory"),
        (["data.curate={dedup: default, noise_ratio: 0.07}"], ["data.curate.noise_ratio"], "no stage has soft rules"),
        (["data.curate={dedup: {threshold: 1, shingle: 7}}"], ["data.curate.dedup.shingle"], "takes no MinHash"),
        (
            ["data.curate={quality: {gopher: {least_stop_words: 1}, languages: [{language: ko}]}}"],
            ["data.curate.quality.languages", "data.curate.quality.gopher.least_stop_words"],
            "data.curate.language is null",
        ),
        (["memory.offload_folder=/scratch"], ["memory.offload_folder"], "nothing is offloaded to disk"),
    ],
)
def test_what_does_nothing_is_named_with_its_reason(tree: Tree, overrides: list[str], fields: list[str], why: str) -> None:
    recipe = parse(tree, overrides)
    found = ignored(recipe)
    assert [line.split(":")[0] for line in found] == fields
    assert all(why in line and len(line.splitlines()) == 1 for line in found)
    assert ignored(parse(_read(dump(recipe)))) == found


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["train.schedule={name: linear, final_ratio: 0}"],
        ["generate={temperature: 0.5, top_k: 5, top_p: 0.5}"],
        ["train.evaluate_tokens=9"],
        ["memory.offload_optimizer=host"],
        ["data.curate={quality: {gopher: {least_words: 1}}, noise_ratio: 0.07}"],
        ["data.curate={language: default, quality: {languages: [{language: ko}], gopher: null}}"],
        ["train.device=cpu", "memory.offload_optimizer=disk", "memory.offload_folder=/scratch"],
        [f"model.rope_scaling={{kind: yarn, factor: 2, {ROPE}, beta_fast: 8, beta_slow: 2, attention_factor: 2}}"],
        [f"model.rope_scaling={{kind: llama3, factor: 2, {ROPE}, low_frequency_factor: 2, high_frequency_factor: 8}}"],
    ],
)
def test_what_does_something_is_not(tree: Tree, overrides: list[str]) -> None:
    assert ignored(parse(tree, overrides)) == []


def test_the_device_that_auto_came_to_decides(tree: Tree) -> None:
    recipe = parse(tree, ["memory.offload_optimizer=host"])
    assert [line.split(":")[0] for line in ignored(recipe, "cpu")] == ["memory.offload_optimizer"]
    assert ignored(recipe, "cuda:0") == []


def test_what_a_compiled_step_hides_is_said(tree: Tree) -> None:
    (line,) = ignored(parse(tree, ["train.compile=true"]))
    assert line.startswith("watch.statistics_every: has no activations")
    assert ignored(parse(tree, ["train.compile=true", "watch.statistics_every=0", "watch.histograms_every=0"])) == []


def test_the_defaults_in_a_runs_own_recipe_are_nobodys_settings(tree: Tree) -> None:
    overrides = ["train.schedule.name=constant", "generate.temperature=0", "data.validation_fraction=0", "stages=[train]"]
    assert ignored(parse(_read(dump(parse(tree, overrides))))) == []


def _read(text: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text)

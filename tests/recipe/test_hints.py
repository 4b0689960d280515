"""Unknown keys: the nearest valid one with its section, and the names that users of other tools type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from danlu.errors import UserError
from danlu.recipe import parse
from danlu.recipe.fields import dotted, every_field
from danlu.recipe.hints import nearest_choice, unknown_key
from danlu.recipe.other_names import OTHER_NAMES, OTHER_VALUES

Refusal = Callable[..., str]
Tree = dict[str, Any]

# What TrainingArguments, SFTConfig, the language modelling example script and a Llama config.json call it (transformers 4 and 5).
HUGGING_FACE = {
    "learning_rate": "train.optimizer.learning_rate",
    "gradient_accumulation_steps": "train.global_batch",
    "per_device_train_batch_size": "memory.micro_batch",
    "max_steps": "train.steps",
    "num_train_epochs": "train.steps",
    "warmup_ratio": "train.schedule.warmup_fraction",
    "warmup_steps": "train.schedule.warmup_steps",
    "lr_scheduler_type": "train.schedule.name",
    "weight_decay": "train.optimizer.weight_decay",
    "max_grad_norm": "train.optimizer.gradient_clipping",
    "adam_beta1": "train.optimizer.betas",
    "adam_beta2": "train.optimizer.betas",
    "adam_epsilon": "train.optimizer.epsilon",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "torch_compile": "train.compile",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "eval_steps": "train.evaluate_every",
    "logging_steps": "watch.print_every",
    "seed": "train.seed",
    "dataloader_num_workers": "data.workers",
    "output_dir": "name",
    "block_size": "data.sequence_length",
    "max_seq_length": "data.sequence_length",
    "optim": "train.optimizer.name",
    "model_name_or_path": "model.hugging_face",
    "tokenizer_name": "data.tokenizer.path",
    "train_file": "data.sources",
    "validation_split_percentage": "data.validation_fraction",
    "hidden_size": "model.hidden_size",
    "num_hidden_layers": "model.layers",
    "num_attention_heads": "model.heads",
    "num_key_value_heads": "model.kv_heads",
    "head_dim": "model.head_size",
    "intermediate_size": "model.ffn_size",
    "max_position_embeddings": "model.max_sequence_length",
    "rms_norm_eps": "model.norm_epsilon",
    "tie_word_embeddings": "model.tied_embeddings",
    "attention_bias": "model.qkv_bias",
    "rope_theta": "model.rope_theta",
    "rope_scaling": "model.rope_scaling",
    "sliding_window": "model.sliding_window",
    "model_type": "model.family",
    "vocab_size": "model.vocab_size",
    "max_new_tokens": "generate.max_tokens",
    "lr": "train.optimizer.learning_rate",
}


@pytest.mark.parametrize(("name", "path"), HUGGING_FACE.items())
def test_names_of_hugging_face_lead_to_the_field(refusal: Refusal, name: str, path: str) -> None:
    message = refusal(**{name: 1})
    assert f"{name}: no such key" in message
    assert path in message


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [
        ("gradient_accumulation_steps", "accumulation steps = train.global_batch / (memory.micro_batch x parallel.data)"),
        ("per_device_train_batch_size", "train.global_batch = this x accumulation steps x processes"),
        ("num_train_epochs", "steps = epochs x training tokens / (data.sequence_length x train.global_batch)"),
        ("min_lr", "final_ratio = min_lr / learning_rate"),
        ("validation_split_percentage", "fraction = percentage / 100"),
        ("adam_beta2", "one list of two numbers, [beta1, beta2]"),
        ("output_dir", "runs/<name>"),
    ],
)
def test_what_is_not_one_to_one_is_explained(refusal: Refusal, name: str, arithmetic: str) -> None:
    assert arithmetic in refusal(train={name: 1})


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.stepz=1", "train.stepz: no such key; did you mean train.steps?"),
        ("train.optimizer.wieght_decay=1", "did you mean train.optimizer.weight_decay?"),
        ("model.hiden_size=1", "did you mean model.hidden_size?"),
        ("data.sources.0.pth=1", "did you mean data.sources.0.path?"),
        ("model.rope_scaling.facter=1", "did you mean model.rope_scaling.factor?"),
        ("train.learning_rate=1", "did you mean train.optimizer.learning_rate?"),
        ("learning-rate=1", "did you mean train.optimizer.learning_rate?"),
        ("learnig_rate=1", "did you mean train.optimizer.learning_rate?"),
        ("optimizer={}", "did you mean train.optimizer?"),
        ("micro_batch=1", "did you mean memory.micro_batch?"),
        ("train.micro_batch=1", "did you mean memory.micro_batch?"),
        ("Train={}", "did you mean train?"),
        ("model.Hidden-Size=1", "did you mean model.hidden_size?"),
        ("seed=1", "did you mean train.seed or generate.seed?"),
        ("train.warmup=1", "train.schedule.warmup_steps or train.schedule.warmup_fraction?"),
        ("train.schedule.warmup=1", "did you mean train.schedule.warmup_"),
        (
            "zzz=1",
            "the keys of a recipe are name, stages, model, data, train, parallel, memory, generate, watch, doctor and checkpoint",
        ),
        ("memory.zzz=1", "the keys of memory are auto, micro_batch"),
        ("data.tokenizer.zzz=1", "the keys of data.tokenizer are train, path, begin and end"),
        ("=1", "write it like train.steps=10"),
    ],
)
def test_an_unknown_key_leads_to_the_nearest(refusal: Refusal, override: str, hint: str) -> None:
    assert hint in refusal(override)


def test_a_file_gives_the_same_hint_as_an_override(tree: Tree, refusal: Refusal) -> None:
    with pytest.raises(UserError) as caught:
        parse({**tree, "train": {"optimizer": {"wieght_decay": 1}}})
    assert str(caught.value).removeprefix("recipe: ") == refusal("train.optimizer.wieght_decay=1").split(": ", 1)[1]


def test_a_dotted_key_in_a_file_is_explained(refusal: Refusal) -> None:
    assert "the dots of train.steps are for the command line" in refusal(**{"train.steps": 5})
    assert "write the sections as nested keys" in refusal(data={"sources": [{"path": "a"}], "data.sources.0.weight": 2})


def test_every_name_from_elsewhere_leads_to_a_field_that_exists() -> None:
    fields = {dotted(entry.path) for entry in every_field()}
    for name, (paths, _) in OTHER_NAMES.items():
        assert paths
        assert set(paths) <= fields, name


def test_names_from_elsewhere_are_none_of_danlus_own() -> None:
    own = {str(entry.path[-1]) for entry in every_field()}
    assert not own & set(OTHER_NAMES)


def test_every_field_is_found_from_the_top_by_its_own_name() -> None:
    top = {str(entry.path[0]) for entry in every_field()}
    for entry in every_field():
        if entry.path[-1] not in top:
            assert dotted(entry.path) in unknown_key((str(entry.path[-1]),)).meant


def test_choices_of_other_tools_are_known() -> None:
    assert nearest_choice("bfloat16", ["fp32", "bf16"]) == "bf16"
    assert nearest_choice("bfloat16", ["cosine", "linear"]) is None
    assert nearest_choice(16, ["fp32", "bf16"]) is None
    assert set(OTHER_VALUES.values()) <= {
        "fp32",
        "fp16",
        "bf16",
        "torch",
        "paddle",
        "cuda",
        "adamw",
        "constant",
        "cosine",
        "evaluate",
        "generate",
    }

"""Distillation and preferences by the command line: from files to figures, and what is refused on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from danlu.cli import cli
from danlu.data import tokenizer as tokenizers
from danlu.data.chat.forms import Unfit
from danlu.data.chat.pairs import pair
from danlu.data.prepared import Prepared
from danlu.errors import UserError
from danlu.pretrained.folder import kept_layers
from danlu.watch import store

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
ANSWERS = [{"prompt": f"Say {n}.", "chosen": f"{n} 是", "rejected": f"No, {n} it is not"} for n in range(9)]
TALKS = [
    {
        "chosen": [{"role": "user", "content": f"Count to {n}"}, {"role": "assistant", "content": "1 2 3"}],
        "rejected": [{"role": "user", "content": f"Count to {n}"}, {"role": "assistant", "content": "I will not"}],
    }
    for n in range(9)
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = tmp_path_factory.mktemp("objectives") / "base"
    config = LlamaConfig(vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(made)
    data = tokenizers.train([json.dumps(each, ensure_ascii=False) for each in ANSWERS + TALKS] * 3, 310)
    tokenizers.save(made, data, None, tokenizers.END, {"pad_token": tokenizers.PAD, "chat_template": TEMPLATE})
    return made


def run(place: Path, name: str, base: Path, records: list[Any], train: dict[str, Any], **data: Any) -> Path:
    source = place / f"{name}.jsonl"
    source.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records), encoding="utf-8")
    recipe = {
        "name": name,
        "stages": ["prepare", "train", "evaluate"],
        "model": {"hugging_face": str(base)},
        "data": {
            "sources": [{"path": str(source)}],
            "tokenizer": {"path": str(base)},
            "sequence_length": 48,
            "validation_fraction": 0.3,
            "workers": 0,
            **data,
        },
        "checkpoint": {"every": 2},
        "train": {"steps": 4, "global_batch": 4, "device": "cpu", "optimizer": {"learning_rate": 1e-2}, **train},
    }
    (place / f"{name}.yaml").write_text(json.dumps(recipe))
    done = CliRunner().invoke(cli, ["run", str(place / f"{name}.yaml"), "--runs", str(place / "runs")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return place / "runs" / name


def test_a_student_of_some_layers_learns_from_the_whole(base: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    made = CliRunner().invoke(cli, ["import", str(base), "--to", str(student), "--layers", "2"], catch_exceptions=False)
    assert made.exit_code == 0 and json.loads((student / "config.json").read_text())["num_hidden_layers"] == 2
    texts = [{"text": f"{each['prompt']} {each['chosen']} " * 9} for each in ANSWERS]
    train = {"objective": "distill", "distill": {"teacher": str(base), "divergence": "jensen_shannon"}}
    done = run(tmp_path, "distil", student, texts, train)
    metrics = done / "metrics.sqlite"
    for name in ("train/objective", "train/divergence", "validation/divergence"):
        assert store.series(metrics, name)[1][-1] > 0
    loss = store.series(metrics, "validation/loss")[1][-1]
    assert json.loads((done / "evaluation.json").read_text())["loss"] == pytest.approx(loss, rel=1e-5)
    assert "divergence" in (done / "report.html").read_text(encoding="utf-8")
    other = tmp_path / "other"
    made = CliRunner().invoke(cli, ["import", str(base), "--to", str(other)], catch_exceptions=False)
    told = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = told["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (other / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
    cached(base, student, texts, train, tmp_path, done)
    with pytest.raises(UserError, match=r"its token \d+ is '[AB]', and the run's '[AB]'.*give data\.tokenizer\.path"):
        run(tmp_path, "mixed", student, texts, {"objective": "distill", "distill": {"teacher": str(other)}})


def cached(base: Path, student: Path, texts: list[Any], train: dict[str, Any], place: Path, online: Path) -> None:
    """A teacher's answers, once on disk, are enough; those of another teacher, or to something else, are refused."""
    teacher, cache = place / "teacher", place / "answers"
    shutil.copytree(base, teacher)
    train["distill"] |= {"teacher": str(teacher), "cache": str(cache), "top_k": 319}
    done = run(place, "offline", student, texts, train)
    told = json.loads((cache / "likeliest.json").read_text())
    assert told["bytes_per_token"] == 319 * 4 + 2 and 0.99 < told["mean_mass"] < 1
    for name, tolerance in (("train/loss", 1e-5), ("train/divergence", 0.05)):  # float16 has 11 bits for a log of -6
        ours, theirs = (store.series(each / "metrics.sqlite", name)[1] for each in (done, online))
        assert ours == pytest.approx(theirs, rel=tolerance)
    assert "validation/divergence" not in store.names(done / "metrics.sqlite")
    beside = train | {"distill": train["distill"] | {"cache": None, "top_k": 64}}
    resumed = run(place, "resumed", student, texts, beside)
    shutil.rmtree(resumed / "checkpoints" / "step-00000004")
    before = (cache / "logs-00000.npy").stat().st_mtime_ns
    weights = teacher / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(UserError, match=r"train\.distill\.cache: .* holds answers of another teacher; name another"):
        run(place, "changed", student, texts, train)
    with pytest.raises(UserError, match=r"train\.distill\.teacher: .* another model than the one that .*0002 was trained beside"):
        run(place, "resumed", student, texts, beside)
    shutil.rmtree(teacher)
    run(place, "without", student, texts, train)
    assert (cache / "logs-00000.npy").stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"answers holds answers of other data; name another"):
        run(place, "data", student, texts[1:], train)
    with pytest.raises(UserError, match="of another number of tokens"):
        run(place, "few", student, texts, train | {"distill": train["distill"] | {"top_k": 7}})
    with pytest.raises(UserError, match=r"/teacher is no folder, and .*/none has no answers"):
        run(place, "none", student, texts, train | {"distill": train["distill"] | {"cache": str(place / "none")}})


def test_layers_by_number_and_by_name() -> None:
    assert kept_layers("3", 5) == [0, 2, 4] and kept_layers("1", 5) == [0] and kept_layers("4", 5) == [0, 1, 3, 4]
    assert kept_layers("0-1,4", 5) == [0, 1, 4] and kept_layers("2-2", 5) == [2]
    for wrong in ("5", "0", "-1", "", "0-5", "3,1", "1,1", "1-x", "3-1"):
        with pytest.raises(UserError, match="the model has layers 0 to 4; give fewer than 5, such as 2"):
            kept_layers(wrong, 5)


def test_preferences_move_the_margin(base: Path, tmp_path: Path) -> None:
    same = {"prompt": "Say it.", "chosen": "It", "rejected": "It"}
    records = [*ANSWERS, *TALKS, same]
    done = run(tmp_path, "dpo", base, records, {"objective": "dpo", "lora": {"rank": 2}, "steps": 8}, bad_line_limit=0.1)
    prepared = Prepared.open(done / "data")
    report = prepared.index["report"]
    assert (report["bad"], report["documents"]) == (1, 18) and "both answers are the same" in report["examples"][0]
    assert prepared.train.together == 2 and prepared.train.documents % 2 == 0
    margins = store.series(done / "metrics.sqlite", "train/margin")[1]
    assert margins[0] == pytest.approx(0, abs=1e-6) and margins[-1] > 0.01
    result = json.loads((done / "evaluation.json").read_text())
    assert result["pairs"] == prepared.validation.documents // 2 and result["margin"] > 0
    assert result["margin"] == pytest.approx(store.series(done / "metrics.sqlite", "validation/margin")[1][-1], rel=1e-4)
    told = CliRunner().invoke(cli, ["evaluate", str(done)], catch_exceptions=False).output
    assert "a pair, margin" in told
    names = store.names(done / "metrics.sqlite")
    assert "train/perplexity" not in names and "probe/batch_loss" not in names


def test_forms_of_pairs() -> None:
    bare = pair({"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"})
    assert bare == [("2 + 2 =", " 4"), ("2 + 2 =", " 5")]
    asked = [{"role": "user", "content": "Hi"}]
    answers = {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    wanted = [[*asked, *answers["chosen"]], [*asked, *answers["rejected"]]]
    assert pair({"prompt": "Hi", **answers}) == pair({"prompt": asked, **answers}) == wanted
    assert pair({name: asked + answer for name, answer in answers.items()}) == wanted
    assert pair({"prompt": asked, "chosen": "chosen", "rejected": "rejected"}) == wanted
    assert pair({"prompt": "Hi", **{name: asked + answer for name, answer in answers.items()}}) == wanted


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ([], "no fields chosen and rejected"),
        ({"prompt": "a", "chosen": "b"}, "no fields chosen and rejected"),
        ({"chosen": "b", "rejected": "c"}, "no field prompt"),
        ({"prompt": "a", "chosen": " ", "rejected": "c"}, "chosen: an empty completion"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "rejected: "),
        ({"prompt": "a", "chosen": "b", "rejected": []}, "rejected: no answer of the assistant"),
        ({"prompt": "a\ud800", "chosen": "b", "rejected": "c"}, "half of a surrogate pair"),
    ],
)
def test_what_is_no_pair(record: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        pair(record)

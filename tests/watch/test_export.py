"""Exported metrics, read back value for value by VisualDL's and TensorBoard's own readers, and imported again."""

from __future__ import annotations

import json
import math
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from visualdl import LogReader

from danlu.cli import cli
from danlu.errors import UserError
from danlu.recipe import parse
from danlu.train.recording import follow
from danlu.watch import store
from danlu.watch.export import Facts, Mirror, export, settings_of
from danlu.watch.formats import tensorboard, visualdl, wire
from danlu.watch.histogram import histogram
from danlu.watch.importing import import_log
from danlu.watch.recorder import Recorder

LOSS = [3.5, math.nan, 0.0, -math.inf, 1e-40, 0.1]
DRAW = np.random.default_rng(0).normal(size=(2, 500))


def record(run: Path, first: int = 1, loss: list[float] = LOSS) -> None:
    run.mkdir(exist_ok=True)
    with Recorder.open(run / "metrics.sqlite") as recorder:
        recorder.start_segment(first, {})
        for step, value in enumerate(loss, first):
            recorder.scalars(step, {"train/loss": value, "系统/cpu 100%@0": step / 3})
        recorder.histograms(first + 1, {"layer/a/gradient": histogram(DRAW[0])})
        recorder.event(first + 1, "checkpoint", "saved 检查点")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record(tmp_path / "run")
    return tmp_path / "run"


def danlu(*arguments: Any) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def single(value: float) -> float:
    return float(np.float32(value))


def same(found: list[float], expected: list[float]) -> bool:
    return np.array_equal(found, [single(value) for value in expected], equal_nan=True)


def read_visualdl(folder: Path) -> LogReader:
    (file,) = folder.iterdir()
    return LogReader(file_path=str(file))


def read_tensorboard(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_visualdl_reads_every_value(run: Path, tmp_path: Path) -> None:
    danlu("watch", "export", run, "--format", "visualdl", "--to", tmp_path / "logs")
    found = read_visualdl(tmp_path / "logs")
    points = found.get_data("scalar", "train/loss")
    assert [point.id for point in points] == list(range(1, 7))
    assert same([point.value for point in points], LOSS)
    steps, seconds = store.times(run / "metrics.sqlite")
    assert [point.timestamp for point in points] == [round(moment * 1000) for moment in seconds]
    assert same([point.value for point in found.get_data("scalar", "系统/cpu 100_@0")], (steps / 3).tolist())
    (spread,) = found.get_data("histogram", "layer/a/gradient")
    assert list(spread.histogram.hist) == histogram(DRAW[0]).counts.tolist()
    assert list(spread.histogram.bin_edges) == histogram(DRAW[0]).edges.tolist()
    assert found.get_data("text", "events/checkpoint")[0].text.encoded_text_string == "saved 检查点"


def test_tensorboard_reads_every_value(run: Path, tmp_path: Path) -> None:
    danlu("watch", "export", run, "--format", "tensorboard", "--to", tmp_path / "logs")
    found = read_tensorboard(tmp_path / "logs")
    points = found.Scalars("train/loss")
    assert [point.step for point in points] == list(range(1, 7))
    assert same([point.value for point in points], LOSS)
    assert [point.wall_time for point in points] == store.times(run / "metrics.sqlite")[1].tolist()
    (spread,) = found.Histograms("layer/a/gradient")
    told = spread.histogram_value
    assert told.bucket == histogram(DRAW[0]).counts.tolist() and told.num == 500
    assert told.bucket_limit == histogram(DRAW[0]).edges[1:].tolist()
    assert told.min <= DRAW[0].min() and told.max >= DRAW[0].max()
    assert told.sum_squares == pytest.approx((DRAW[0] ** 2).sum(), rel=0.1)
    assert found.Tensors("events/checkpoint")[0].tensor_proto.string_val == ["saved 检查点".encode()]


def test_a_recipe_s_fields_are_hyper_parameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    record(tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        "name: run\nmodel: {preset: llama-5m}\ndata: {sources: [{path: x}], document_mask: false}\ntrain: {steps: 7}\n"
    )
    danlu("watch", "export", tmp_path, "--format", "visualdl")
    danlu("watch", "export", tmp_path, "--format", "tensorboard")
    (told,) = read_visualdl(tmp_path / "visualdl").get_data("hyper_parameters", "hparam")
    fields = {entry.name: entry for entry in told.hparam.hparamInfos}
    assert fields["train.steps"].int_value == 7
    assert fields["train.optimizer.learning_rate"].float_value == 3e-4
    assert fields["model.preset"].string_value == "llama-5m"
    accumulator = read_tensorboard(tmp_path / "tensorboard")
    (content,) = accumulator.PluginTagToContent("hparams").values()
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["train.steps"].number_value == 7 and settings["model.preset"].string_value == "llama-5m"
    assert settings["data.document_mask"].HasField("bool_value") and not settings["data.document_mask"].bool_value
    assert b"preset: llama-5m" in accumulator.Tensors("recipe")[0].tensor_proto.string_val[0]


@pytest.mark.parametrize("read", [read_visualdl, read_tensorboard])
def test_a_live_export_follows_a_run_and_its_rollback(tmp_path: Path, read: Any) -> None:
    """After a resume the files hold what readers of the metrics see, no step twice."""
    kind: Any = read.__name__.removeprefix("read_")
    metrics, folder = tmp_path / "metrics.sqlite", tmp_path / kind
    for first, offset in ((1, 0.0), (4, 100.0)):
        with Recorder.open(metrics) as recorder:
            recorder.start_segment(first, {})
            recorder.follower = Mirror(metrics, {kind: folder}, Facts({"a": 1}, "a: 1"), first)
            recorder.event(first - 1, "start", "begins")
            for step in range(first, first + 5):
                recorder.scalars(step, {"train/loss": offset + step})
            recorder.histograms(first + 2, {"h": histogram(DRAW[1])})
    found = read(folder)
    if kind == "visualdl":
        points = [(point.id, point.value) for point in found.get_data("scalar", "train/loss")]
        spreads = [point.id for point in found.get_data("histogram", "h")]
        begun = [point.id for point in found.get_data("text", "events/start")]
    else:
        points = [(point.step, point.value) for point in found.Scalars("train/loss")]
        spreads = [point.step for point in found.Histograms("h")]
        begun = [point.step for point in found.Tensors("events/start")]
    assert points == [(1, 1), (2, 2), (3, 3), (4, 104), (5, 105), (6, 106), (7, 107), (8, 108)]
    assert spreads == [3, 6] and begun == [0, 3]


def test_a_run_that_goes_back_leaves_one_export_under_way(tmp_path: Path) -> None:
    data = {"sources": [{"path": "x"}]}
    recipe = parse({"name": "run", "model": {"preset": "llama-5m"}, "data": data, "watch": {"export": ["tensorboard"]}})
    with Recorder.open(tmp_path / "metrics.sqlite") as recorder:
        for first, loss in ((1, 5.0), (2, 4.0)):
            recorder.start_segment(first, {})
            follow(recorder, recipe, tmp_path, first)
            for step in (first, first + 1):
                recorder.scalars(step, {"train/loss": loss})
            recorder.flush()
        assert [thread.name for thread in threading.enumerate()].count("danlu-export") == 1
    found = read_tensorboard(tmp_path / "tensorboard").Scalars("train/loss")
    assert [(point.step, point.value) for point in found] == [(1, 5.0), (2, 4.0), (3, 4.0)]


@pytest.mark.parametrize("kind", ["visualdl", "tensorboard"])
def test_an_export_leaves_other_programs_files_alone(run: Path, tmp_path: Path, kind: Any) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    foreign = [logs / name for name in ("vdlrecords.1587375595.log", "events.out.tfevents.1587375595.host.1.0")]
    for file in foreign:
        file.write_bytes(b"another's")
    for _ in range(2):
        export(run / "metrics.sqlite", logs, kind, Facts({}, "")).close()
    assert len(list(logs.iterdir())) == 3 and all(file.read_bytes() == b"another's" for file in foreign)


def test_an_export_that_fails_is_said_once_and_costs_no_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metrics = tmp_path / "metrics.sqlite"
    (tmp_path / "visualdl").write_text("a file where the folder should be")
    with Recorder.open(metrics) as recorder:
        recorder.start_segment(1, {})
        folders: Any = {kind: tmp_path / kind for kind in ("visualdl", "tensorboard")}
        recorder.follower = Mirror(metrics, folders, Facts({}, ""), 1)
        for step in range(1, 4):
            recorder.scalars(step, {"train/loss": 1.0 * step})
    (line,) = capfd.readouterr().err.splitlines()
    assert "export to visualdl ends here" in line
    assert (
        len(store.series(metrics, "train/loss")[0]) == len(read_tensorboard(tmp_path / "tensorboard").Scalars("train/loss")) == 3
    )


@pytest.mark.parametrize("kind", ["visualdl", "tensorboard"])
def test_what_is_exported_can_be_imported(run: Path, tmp_path: Path, kind: str) -> None:
    danlu("watch", "export", run, "--format", kind, "--to", tmp_path / "logs")
    told = json.loads(danlu("watch", "import", tmp_path / "logs", "--to", tmp_path / "again", "--json"))
    assert told == {"run": str(tmp_path / "again"), "signals": 2, "points": 12, "histograms": 1}
    metrics = tmp_path / "again" / "metrics.sqlite"
    assert same(store.series(metrics, "train/loss")[1].tolist(), LOSS)
    assert np.allclose(store.times(metrics)[1], store.times(run / "metrics.sqlite")[1], atol=1e-3)
    before, after = (store.histograms(each / "metrics.sqlite", "layer/a/gradient") for each in (run, tmp_path / "again"))
    assert after.steps.tolist() == [2] and after.counts.tolist() == before.counts.tolist()
    assert after.exponents.tolist() == before.exponents.tolist()
    assert [event.kind for event in store.events(metrics)] == ["text", "imported", "finished"]


def test_files_of_the_real_writers_are_imported(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from visualdl import LogWriter

    values = np.linspace(-2, 2, 41)
    with SummaryWriter(str(tmp_path / "tb" / "train"), purge_step=None) as writer:
        for step in range(5):
            writer.add_scalar("loss", step / 7, step)
            writer.add_scalar("new", step / 7, step, new_style=True)
        writer.add_histogram("spread", values, 4)
        writer.add_text("note", "hello", 2)
    with LogWriter(logdir=str(tmp_path / "vdl")) as writer:
        for step in range(5):
            writer.add_scalar("eval_loss", step / 7, step)
            writer.add_scalars("two", {"x": 1.0 * step}, step)
        writer.add_histogram("spread", values, 4, buckets=8)
    import_log(tmp_path / "tb", tmp_path / "a")
    import_log(tmp_path / "vdl", tmp_path / "b")
    a, b = tmp_path / "a" / "metrics.sqlite", tmp_path / "b" / "metrics.sqlite"
    assert store.names(a) == ["train/loss", "train/new"] and store.names(b) == ["two/x", "validation/loss"]
    for metrics, name in ((a, "train/new"), (b, "validation/loss")):
        assert same(store.series(metrics, name)[1].tolist(), [step / 7 for step in range(5)])
    assert store.histograms(a, "train/spread").counts.sum() == store.histograms(b, "spread").counts.sum() == 41
    assert [event.message for event in store.events(a) if event.kind == "text"] == ["note/text_summary: hello"]


def test_a_restart_of_tensorboard_replaces_steps(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for purge, values in ((None, [1.0, 2.0, 3.0, 4.0]), (2, [30.0])):
        with SummaryWriter(str(tmp_path / "tb"), purge_step=purge, filename_suffix=f".{purge or 0}") as writer:
            for step, value in enumerate(values, purge or 0):
                writer.add_scalar("x", value, step)
    import_log(tmp_path / "tb", tmp_path / "run")
    steps, found = store.series(tmp_path / "run" / "metrics.sqlite", "x")
    expected = [(event.step, event.value) for event in read_tensorboard(tmp_path / "tb").Scalars("x")]
    assert list(zip(steps.tolist(), found.tolist(), strict=True)) == expected == [(0, 1.0), (1, 2.0), (2, 30.0)]


def test_a_trainer_s_state_becomes_a_run(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 2.5, "step": 10},
        {"epoch": 0.1, "eval_loss": 2.4, "eval_runtime": 3.0, "step": 10},
        {"epoch": 0.2, "grad_norm": 1.4, "learning_rate": 9e-5, "loss": 2.25, "step": 20},
        {"epoch": 0.2, "step": 20, "train_loss": 2.3, "train_runtime": 100.0},
    ]
    file = tmp_path / "checkpoint-20" / "trainer_state.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"log_history": history, "max_steps": 20}))
    import_log(file, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.sqlite"
    assert store.series(metrics, "train/loss")[1].tolist() == [2.5, 2.25], "not the mean that ends the log"
    assert store.series(metrics, "validation/loss")[0].tolist() == [10]
    assert store.series(metrics, "train/gradient_norm")[1].tolist() == [1.5, 1.4]
    assert store.segments(metrics)[0].info == {"imported": "trainer_state.json", "max_steps": 20}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("events.out.tfevents.1", b"no event file at all, but long enough", "damaged, or no event file"),
        ("vdlrecords.1.log", b"no log at all, but long enough", "damaged, or no event file"),
        ("vdlrecords.2.log", struct.pack("<Q", 3) + b"\x0a\xff\x01", "damaged, or no event file"),
        ("trainer_state.json", b"{}", "is no trainer_state.json"),
        ("trainer_state.json", b'{"log_history": [{"loss": 1}]}', "is no trainer_state.json"),
        ("trainer_state.json", b'{"log_history": [{"step": 1e30, "loss": 1}]}', "a step is beyond"),
        ("log.csv", b"step,loss\n", "holds no metrics"),
        ("log.csv", b"step,loss\n1e300,2\n", "a step is beyond"),
        ("log.txt", b"", "neither a run folder nor a log"),
    ],
)
def test_what_is_no_log_is_refused_in_a_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as refused:
        import_log(tmp_path / name, tmp_path / "run")
    assert len(str(refused.value).splitlines()) == 1 and not (tmp_path / "run").exists()


def test_a_folder_that_is_there_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(UserError, match="is there already"):
        import_log(tmp_path / "log.csv", tmp_path)
    with pytest.raises(UserError, match=r"neither metrics\.sqlite nor event files"):
        import_log(tmp_path, tmp_path / "run")


@pytest.mark.parametrize("kind", ["visualdl", "tensorboard"])
def test_a_file_that_was_cut_off_gives_what_is_whole(run: Path, tmp_path: Path, kind: str) -> None:
    danlu("watch", "export", run, "--format", kind, "--to", tmp_path / "logs")
    (file,) = (tmp_path / "logs").iterdir()
    whole, read = file.read_bytes(), {"visualdl": visualdl.read, "tensorboard": tensorboard.read}[kind]
    counts = []
    for size in range(0, len(whole), 97):
        file.write_bytes(whole[:size])
        counts.append(sum(map(len, read(file).scalars.values())))
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] == 12


def test_messages_that_are_damaged_say_so_and_nothing_worse() -> None:
    good = wire.integer(1, -5) + wire.text(2, "name") + wire.double(3, 0.5) + wire.single(4, 1e300) + wire.doubles(5, [1.0, 2.0])
    message = wire.Message(good)
    assert (message.integer(1), message.text(2), message.number(3), message.number(4)) == (-5, "name", 0.5, math.inf)
    assert message.numbers(5, "<f8").tolist() == [1.0, 2.0]
    with pytest.raises(wire.Malformed):
        message.number(2)
    for size in range(len(good)):
        try:
            wire.Message(good[:size])
        except wire.Malformed:
            continue


def test_settings_are_flat() -> None:
    assert settings_of({"a": {"b": 1, "c": None}, "d": [1, 2], "e": True}) == {"a.b": 1, "d": "[1, 2]", "e": True}

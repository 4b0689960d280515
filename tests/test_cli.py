"""The command line as a person and a shell see it."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from danlu import cli
from danlu.run_folder import RunFolder

HEAVY = {"torch", "paddle", "pydantic", "numpy", "ruamel", "tokenizers", "pyarrow", "safetensors", "transformers", "psutil"}
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "danlu"]
Call = Callable[..., Any]


def shell(*arguments: object, **settings: object) -> subprocess.CompletedProcess[bytes]:
    """A real process; `environment` is put over this one's."""
    environment = {**ONE_THREAD, **settings.pop("environment", {})}  # type: ignore[dict-item]
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, env=environment, timeout=120, **settings)  # type: ignore[call-overload,no-any-return]


def commands(command: click.Command, path: tuple[str, ...] = ("danlu",)) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


TREE = list(commands(cli.cli))


# --- help ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], []])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "danlu", *arguments], capture_output=True, text=True, check=True
    )
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if line.count("|") == 2}
    assert "click" in imported and "danlu" in imported
    assert not imported & HEAVY


def test_help_leaves_nothing_heavy_in_the_process() -> None:
    program = (
        "import sys; sys.argv = ['danlu', '--help']\n"
        "from danlu.cli import main\n"
        "try: main()\n"
        "finally: print('modules:', *(name for name in sys.modules if '.' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.rsplit("modules:", 1)[1].split())
    assert "click" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize(("path", "command"), TREE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_every_verb_has_an_example_that_parses(path: tuple[str, ...], command: click.Command) -> None:
    text = command.get_help(click.Context(command, info_name=" ".join(path)))
    examples = [line.strip() for line in text.splitlines() if line.startswith("    danlu ") or " -m danlu " in line]
    assert "Example" in text and examples
    for example in examples:
        words = shlex.split(example.split(" > ")[0])
        words = words[words.index("danlu") + 1 :]
        assert tuple(words)[: len(path) - 1] == path[1:], f"an example of another verb: {example}"
        called: click.Command = cli.cli
        while isinstance(called, click.Group):
            default = getattr(called, "default", "")
            called = called.commands[words.pop(0) if words and words[0] in called.commands else default]
        called.make_context("danlu", words)  # raises where the example is wrong


@pytest.mark.parametrize(("path", "command"), TREE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_no_help_is_cut_short(path: tuple[str, ...], command: click.Command) -> None:
    text = command.get_help(click.Context(command, info_name=" ".join(path), terminal_width=80))
    assert not [line for line in text.splitlines() if line.endswith("...") and not line.startswith("Usage")]
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, f"{path} {parameter.name} says nothing"


def test_verbs_come_in_the_order_of_their_use(danlu: Call) -> None:
    code, out, _ = danlu()
    listed = [line.split()[0] for line in out.split("Commands:")[1].splitlines() if line.strip()]
    assert code == 0
    assert listed[:8] == ["run", "prepare", "train", "launch", "evaluate", "generate", "chat", "export"]
    assert listed[8:] == [
        "import",
        "quantize",
        "serve",
        "bench-serve",
        "triton",
        "data",
        "watch",
        "report",
        "metrics",
        "profile",
        "doctor",
        "demo",
        "plan",
        "hardware",
        "compare-engines",
        "recipe",
        "model",
    ]


# --- what is refused -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the recipe and all sorts of wrong things."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(recipe_file, "tiny.yaml")
    Path("list.yaml").write_text("[a, b]\n")
    for name in ("empty.yaml", "empty.csv"):
        Path(name).write_text("")
    Path("broken.yaml").write_text("name: [\n")
    Path("gbk.txt").write_bytes("炉火纯青，百炼成钢。".encode("gbk"))
    Path("blank.txt").write_text(" \n")
    Path("picture.png").write_bytes(b"\x89PNG")
    Path("short.jsonl").write_text('{"text": "a b"}\n{"text": "b a"}\n')
    Path("folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("verb", ["run", "train"])
@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.sources.0.path=folder"], "data.sources[0].path: 'folder': no file that can be read"),
        (["data.tokenizer={path: nowhere.json}"], "data.tokenizer.path: there is no file nowhere.json"),
        (["memory.offload_optimizer=disk", "memory.offload_folder=nowhere"], "memory.offload_folder: there is no folder nowhere"),
        (["memory.offload_optimizer=disk", "memory.offload_folder=/proc"], "memory.offload_folder: /proc cannot be written"),
    ],
)
def test_what_is_not_there_is_missed_before_the_run_folder_is_made(
    danlu: Call, place: Path, verb: str, overrides: list[str], says: str
) -> None:
    code, _, err = danlu(verb, "tiny.yaml", *overrides)
    assert code == 2 and says in err and err.count("\n") == 1
    assert not Path("runs").exists()


REFUSED = {
    "no recipe": (["run", "none.yaml"], "none.yaml: no such recipe file"),
    "recipe is a list": (["run", "list.yaml"], "list.yaml:1: a list of 2"),
    "recipe is empty": (["run", "empty.yaml"], "empty; a recipe is"),
    "recipe is broken": (["train", "broken.yaml"], "not valid YAML"),
    "recipe is a folder": (["run", "folder"], "folder: not a run folder"),
    "recipe is a picture": (["run", "picture.png"], "is not UTF-8"),
    "threshold above one": (
        ["data", "dedup", "short.jsonl", "--threshold", "5", "--output", "once"],
        "--threshold: must be a number from 0.3 to 1, but is 5",
    ),
    "log without a line": (["doctor", "empty.csv"], "empty.csv: is empty; a log begins with a line of column names"),
    "unknown verb": (["frobnicate"], "No such command 'frobnicate'. (see danlu --help)"),
    "unknown verb of a group": (["recipe", "frobnicate"], "(see danlu recipe --help)"),
    "unknown option": (["run", "--fast", "tiny.yaml"], "No such option '--fast'. (see danlu run --help)"),
    "missing argument": (["run"], "Missing argument 'RECIPE|RUN'"),
    "unknown key": (["run", "tiny.yaml", "train.stepz=3"], "did you mean train.steps?"),
    "key of another tool": (["run", "tiny.yaml", "train.max_steps=3"], "train.steps"),
    "override without a value": (["run", "tiny.yaml", "train.steps"], "has no path=value"),
    "wrong type": (["run", "tiny.yaml", "train.steps=many"], "train.steps: must be a whole number above 0"),
    "contradiction": (["run", "tiny.yaml", "train.global_batch=7"], "7 is not divisible by memory.micro_batch (4)"),
    "name with a slash": (["run", "tiny.yaml", "name=a/b"], "name: the text 'a/b' does not fit"),
    "name that climbs": (["run", "tiny.yaml", "name=.."], "name: the text '..' does not fit"),
    "no such source": (["prepare", "tiny.yaml", "data.sources.0.path=nowhere"], "there is no such file or folder"),
    "source of an unknown kind": (["prepare", "tiny.yaml", "data.sources.0.path=picture.png"], "not a kind that is read"),
    "empty corpus": (["run", "tiny.yaml", "data.sources.0.path=blank.txt"], "data.sources: no text in 1 file (1 empty"),
    "corpus not UTF-8": (["run", "tiny.yaml", "data.sources.0.path=gbk.txt"], "it looks like GBK"),
    "corpus too short": (
        [
            "run",
            "tiny.yaml",
            "data.sources.0.path=short.jsonl",
            "data.validation_fraction=0",
            "train.evaluate_every=0",
            "stages=[train]",
        ],
        "less than one sample (data.sequence_length + 1 = 33)",
    ),
    "sequence above the model's": (["run", "tiny.yaml", "data.sequence_length=256"], "is above model.max_sequence_length (128)"),
    "vocabulary above the model's": (["run", "tiny.yaml", "model.vocab_size=300"], "model.vocab_size: 300 is smaller than"),
    "no checkpoint to import": (
        ["train", "tiny.yaml", "model={hugging_face: folder}", "data.tokenizer={path: folder}"],
        "folder",
    ),
    "not a run folder": (["evaluate", "folder"], "folder: not a run folder (no recipe.yaml in it)"),
    "run folder is a file": (["generate", "tiny.yaml"], "tiny.yaml: not a run folder"),
    "no run folder": (["export", "nowhere"], "nowhere: not a run folder"),
    "sampling out of range": (["generate", "x", "--temperature", "-1"], "'--temperature': -1.0 is not in the range"),
    "runs folder is none": (["run", "tiny.yaml", "--runs", "/dev/null"], "/dev/null: is not a folder"),
    "unknown dtype": (["export", "x", "--dtype", "int8"], "'int8' is not one of 'fp32', 'bf16', 'fp16'"),
    "unknown preset": (["model", "show", "llama-5n"], "did you mean llama-5m"),
    "no model": (["model", "show", "folder"], "folder holds no config.json"),
}


@pytest.mark.parametrize(("arguments", "says"), REFUSED.values(), ids=list(REFUSED))
def test_bad_input_gets_one_line_and_exit_code_2(danlu: Call, place: Path, arguments: list[str], says: str) -> None:
    code, _, err = danlu(*arguments)
    assert code == 2
    assert err.startswith("danlu: ") and err.endswith("\n") and err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "RUN", "--prompt", "the " * 200], "the model's context holds 128"),
        (["generate", "RUN", "--prompt", "caf\udce9"], "the prompt is not UTF-8"),
        (["generate", "RUN", "--temperature", "nan"], "generate.temperature: must be a number from 0 up, but is nan"),
        (["generate", "RUN", "--temperature", "inf"], "generate.temperature: must be a number from 0 up, but is inf"),
        (["generate", "RUN", "--top-p", "nan"], "generate.top_p: must be a number above 0 up to 1, but is nan"),
        (["generate", "RUN", "--seed", "99999999999999999999999"], "generate.seed: must be a whole number from 0 to below 2^63"),
        (["generate", "RUN", "--seed", str(2**63)], "generate.seed: must be a whole number from 0 to below 2^63"),
        (["evaluate", "RUN", "--file", "picture.png"], "picture.png: not UTF-8 at byte 0"),
        (["evaluate", "RUN", "--file", "gbk.txt"], "gbk.txt: not UTF-8 at byte"),
        (["evaluate", "RUN", "--file", "blank.txt"], "no text in 1 file"),
        (["evaluate", "RUN", "--file", "nowhere.txt"], "there is no such file or folder"),
        (["evaluate", "RUN", "--file", "short.jsonl", "--text", "content"], "no field 'content'"),
        (["export", "RUN", "--to", "folder"], "folder exists and is no export"),
        (["export", "RUN", "--to", "folder", "--replace"], "folder exists and is no export"),
        (["export", "RUN", "--to", "tiny.yaml"], "tiny.yaml exists and is no export"),
        (["train", "RUN", "train.steps=13"], "holds the run of another recipe (train.steps was 12, is now 13)"),
        (["train", "RUN", "data.sequence_length=64"], "holds the run of another recipe"),
    ],
)
def test_a_trained_run_refuses_with_one_line_and_stays_as_it_is(
    danlu: Call, place: Path, run_copy: RunFolder, arguments: list[str], says: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_copy.path.rglob("*") if path.is_file()}
    code, out, err = danlu(*(str(run_copy.path) if word == "RUN" else word for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("danlu: ") and err.count("\n") == 1
    assert says in err
    unchanged = {path: path.stat().st_mtime_ns for path in before if path.exists() and path.name != "recipe.yaml"}
    assert unchanged == {path: time for path, time in before.items() if path.name != "recipe.yaml"}


def test_an_untrained_run_says_what_to_do(danlu: Call, place: Path) -> None:
    assert danlu("prepare", "tiny.yaml")[0] == 0
    for verb in ("evaluate", "generate", "export"):
        assert danlu(verb, "runs/tiny") == (
            2,
            "",
            "danlu: runs/tiny: nothing is trained yet (no checkpoint); run: danlu train runs/tiny\n",
        )


def test_tokenizer_and_checkpoint_that_do_not_fit(danlu: Call, place: Path, run_copy: RunFolder) -> None:
    """Weights of another vocabulary than the data was made with: the folder of another run's data."""
    assert danlu("prepare", "tiny.yaml", "name=other", "data.tokenizer.train.vocab_size=300")[0] == 0
    shutil.rmtree(run_copy.data)
    shutil.copytree("runs/other/data", run_copy.data)
    for verb in ("evaluate", "generate", "export"):
        code, out, err = danlu(verb, run_copy.path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "was trained on other data, or with another tokenizer" in err


def test_a_checkpoint_with_fewer_rows_than_the_tokenizer_has_tokens(danlu: Call, place: Path, run_copy: RunFolder) -> None:
    assert danlu("export", run_copy.path, "--to", "exported")[0] == 0
    larger = ["data.sources.0.path='{stdlib}/json'", "data.tokenizer.train.vocab_size=500"]
    nothing_held_out = ["data.validation_fraction=0", "train.evaluate_every=0", "stages=[train]"]
    code, _, err = danlu("train", "tiny.yaml", "name=imported", "model={hugging_face: exported}", *larger, *nothing_held_out)
    assert code == 2
    assert "its embedding has 364 rows, but the tokenizer's vocabulary is 500" in err and err.count("\n") == 1


# --- how it ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "before"),
    [(KeyboardInterrupt, "\n"), (click.Abort, "")],  # click ends the terminal's own ^C with a line end first
)
def test_ctrl_c_is_one_line_and_130(
    danlu: Call, place: Path, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], before: str
) -> None:
    def stop(*_: object) -> None:
        raise raised

    monkeypatch.setattr("danlu.stages.prepare", stop)
    line = "danlu: stopped at once; what was saved before is intact\n"
    assert danlu("prepare", "tiny.yaml") == (130, "", before + line)


def test_a_full_disk_is_one_line(danlu: Call, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "runs/tiny/evaluation.json")

    monkeypatch.setattr("danlu.stages.prepare", fail)
    assert danlu("prepare", "tiny.yaml") == (1, "", "danlu: runs/tiny/evaluation.json: the disk is full\n")


AS_SOMEBODY_ELSE = """
import os, sys
from danlu import cli

def call(*arguments):
    sys.argv = ["danlu", *arguments]
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code or 0

prompt = ("--prompt", "the", "--max-tokens", "3")
assert call("evaluate", "tiny") == call("generate", "tiny", *prompt) == 0  # all is imported now, whoever may read it
print("----", flush=True)
if os.geteuid() == 0:
    os.seteuid(65534)
codes = [call("evaluate", "tiny"), call("evaluate", "tiny", "--json"), call("generate", "tiny", *prompt)]
print("----", flush=True)
codes += [call("export", "tiny", "--to", "inside/model"), call("train", "tiny")]
codes += [call("run", "tiny", "name=two", "--runs", "inside")]
codes += [call("evaluate", "shut"), call("train", "shut"), call("evaluate", "closed"), call("run", "closed")]
print(codes)
"""


def test_places_that_cannot_be_written_or_read(run_copy: RunFolder) -> None:
    """In a process of an ordinary user, since root may do everything: figures are shown, the rest is exit code 2."""
    root = run_copy.path.parent
    (root / "inside").mkdir()
    for name, part in (("shut", ""), ("closed", "checkpoints")):
        shutil.copytree(run_copy.path, root / name)
        (root / name / part).chmod(0)
    folders = [
        root,
        *(path for path in (*run_copy.path.rglob("*"), run_copy.path, root / "inside", root / "closed") if path.is_dir()),
    ]
    try:
        for folder in folders:
            folder.chmod(0o555)
        (root / "closed" / "checkpoints").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", AS_SOMEBODY_ELSE], capture_output=True, text=True, cwd=root, env=ONE_THREAD, timeout=120
        )
    finally:
        for folder in (*folders, root / "shut", root / "closed" / "checkpoints"):
            folder.chmod(0o755)
    first, second, last = done.stdout.split("----\n")
    figures, sample = first[: first.index("the")], first[first.index("the") :]
    assert second.startswith(figures) and second.endswith(sample), done.stderr
    assert json.loads(second[len(figures) : -len(sample)])["source"] == "validation"
    assert last.splitlines()[-1] == "[0, 0, 0, 2, 2, 2, 2, 2, 2, 2]", done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith("danlu: ") for line in lines)
    warning = "danlu: the result is not kept: tiny/evaluation.json: cannot be written: Permission denied"
    assert warning in lines
    assert len([line for line in lines if line != warning]) == 7


def test_what_serving_needs_is_enough_to_generate(run_copy: RunFolder, danlu: Call) -> None:
    """The extra `serve`, beside an engine: none of what `data` and `dev` have beyond it."""
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {
        name: {re.split(r"[>=]", requirement)[0] for requirement in listed}
        for name, listed in project["optional-dependencies"].items()
    }
    assert extras["serve"] == {"tokenizers", "starlette", "uvicorn", "jinja2", "numba"}
    absent = (extras["data"] | extras["dev"]) - extras["serve"] - extras["torch"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(absent)!r}))\n"
        f"sys.argv = ['danlu', 'generate', {str(run_copy.path)!r}, '--prompt', 'the', '--max-tokens', '5']\n"
        "from danlu.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ONE_THREAD, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == danlu("generate", run_copy.path, "--prompt", "the", "--max-tokens", 5).out


def test_a_mistake_in_the_code_is_not_hidden(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("danlu.stages.prepare", fail)
    monkeypatch.setattr("sys.argv", ["danlu", "prepare", "tiny.yaml"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_disk_that_fills_while_a_checkpoint_is_written(place: Path) -> None:
    """The weights take 168 KB, the limit is 100."""
    done = shell(
        "train", "tiny.yaml", cwd=place, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    )
    assert done.returncode == 3
    *warnings, last = done.stderr.decode().splitlines()
    assert last.startswith("danlu: runs/tiny/checkpoints/step-00000005: the checkpoint could not be written")
    assert all(line.startswith("danlu: metrics cannot be stored") for line in warnings)
    assert not list((place / "runs/tiny/checkpoints").iterdir())


def test_interrupted_and_resumed(danlu: Call, place: Path) -> None:
    """Ctrl-C in the middle of a run; the same command goes on to the end."""
    command = ["run", "tiny.yaml", "train.steps=150", "train.evaluate_every=0", "watch.print_every=1", "stages=[train,evaluate]"]
    process = subprocess.Popen(
        [*COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env=ONE_THREAD
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step   7/150"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    last = [line for line in err.splitlines() if line]
    assert last[-1].startswith("danlu: stopped after step ") and last[-1].endswith("run the same command to go on")
    assert "Traceback" not in err
    done = int(last[-1].split("after step ")[1].split()[0])
    assert 7 <= done < 150
    assert (place / f"runs/tiny/checkpoints/step-{done:08d}").is_dir()
    assert "interrupted" in (place / "runs/tiny/report.html").read_text(encoding="utf-8")

    code, out, err = danlu(*command)
    assert (code, err) == (0, "")
    assert f"after step {done} of 150" in out
    assert "trained 150 steps" in out
    assert json.loads((place / "runs/tiny/summary.json").read_text())["steps"] == 150


@pytest.mark.parametrize("command", ["model list", "recipe schema", "recipe show tiny.yaml"])
def test_a_reader_that_leaves_is_no_error(place: Path, command: str) -> None:
    line = f"{shlex.join(COMMAND)} {command} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, cwd=place, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_reader_that_left_before_the_first_line(place: Path) -> None:
    """The pipe is closed for certain before anything is written."""
    line = f"{{ sleep 0.2; {shlex.join(COMMAND)} model list; echo $? >&2; }} | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=place, check=False)
    assert done.stderr == "1\n"


def test_closed_streams(place: Path) -> None:
    for closed, code in (("model list >&-", 0), ("run none.yaml 2>&-", 2), ("run none.yaml >&- 2>&-", 2)):
        done = subprocess.run(
            ["bash", "-c", f"{shlex.join(COMMAND)} {closed}"], capture_output=True, text=True, cwd=place, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


# --- encodings -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}])
def test_chinese_on_an_ascii_terminal(trained_folder: tuple[RunFolder, str], environment: dict[str, str], tmp_path: Path) -> None:
    """A finished run prints its Chinese samples, its report line and its hints."""
    shutil.copytree(trained_folder[0].path, tmp_path / "炉" / "tiny")
    done = shell("run", "炉/tiny", cwd=tmp_path, environment=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    out = done.stdout.decode("utf-8")
    assert "--- prompt '炉火', continued:\n炉火" in out
    assert "炉/tiny/report.html" in out or "PYTHONUTF8" in environment  # there file names come in as bytes


def test_an_encoding_that_lacks_a_character(place: Path) -> None:
    Path("dragon.yaml").write_text(Path("tiny.yaml").read_text("utf-8").replace('"the "', '"龙 🐉"'), "utf-8")
    shown = shell("recipe", "show", "dragon.yaml", environment={"PYTHONIOENCODING": "gbk"})
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert '"龙 ?"' in shown.stdout.decode("gbk")
    printed = shell("recipe", "show", "dragon.yaml", "--json", environment={"PYTHONIOENCODING": "gbk"})
    assert json.loads(printed.stdout.decode("gbk"))["recipe"]["generate"]["prompts"] == ["炉火", "龙 🐉"]


def test_an_error_about_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "run", b"caf\xe9.yaml"], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"danlu: ") and done.stderr.count(b"\n") == 1
    done.stderr.decode("utf-8")


# --- the verbs -----------------------------------------------------------------------------------------------------------------


def test_json_outputs_parse(danlu: Call, place: Path, run_copy: RunFolder) -> None:
    def parsed(*arguments: object) -> object:
        code, out, err = danlu(*arguments)
        assert (code, err) == (0, "")
        return json.loads(out)

    own = place / "own.md"
    own.write_text("炉火纯青 the quick brown fox")
    evaluation = parsed("evaluate", run_copy.path, "--file", own, "--json")
    assert isinstance(evaluation, dict) and evaluation["source"] == str(own) and evaluation["bytes"] == 32
    assert parsed("evaluate", run_copy.path, "--json") == json.loads((run_copy.path / "evaluation.json").read_text())
    made = parsed("generate", run_copy.path, "--prompt", "炉火", "--prompt", "the", "--json")
    assert isinstance(made, list) and [each["prompt"] for each in made] == ["炉火", "the"]
    shown = parsed("recipe", "show", "tiny.yaml", "train.steps=9", "--json")
    assert isinstance(shown, dict) and shown["recipe"]["train"]["steps"] == 9
    assert {"field": "train.steps", "value": 9, "default": 1000} in shown["differences"]
    schema = parsed("recipe", "schema")
    assert isinstance(schema, dict) and "name" in schema["properties"]
    rows = parsed("model", "show", "llama-5m", "--json")
    presets = parsed("model", "list", "--json")
    assert isinstance(rows, list) and isinstance(presets, list)
    total = next(row["value"] for row in rows if (row["section"], row["label"]) == ("parameters", "total"))
    assert next(each["parameters"] for each in presets if each["preset"] == "llama-5m") == total


def test_a_model_is_shown_as_its_recipe_trains_it(danlu: Call, place: Path, run_copy: RunFolder) -> None:
    def shown(*arguments: object) -> set[str]:
        return {row["section"] for row in json.loads(danlu("model", "show", *arguments, "--json").out)}

    own = {"parameters", "training FLOPs a token at 32 tokens", "training state, fp32"}
    assert shown("tiny.yaml") == shown(run_copy.path) == own
    Path("half.yaml").write_text(
        Path("tiny.yaml").read_text("utf-8").replace("  steps: 12\n", "  steps: 12\n  precision: bf16\n"), "utf-8"
    )
    assert shown("half.yaml") == {"parameters", "training FLOPs a token at 32 tokens", "training state, bf16"}
    others = {"parameters", "training FLOPs a token at 64 tokens", "training state, fp16"}
    assert shown("half.yaml", "--sequence-length", 64, "--precision", "fp16") == others
    assert shown("llama-5m") == {"parameters", "training FLOPs a token at 2,048 tokens", "training state, fp32"}


def test_generate_prints_prompt_and_continuation(danlu: Call, run_copy: RunFolder) -> None:
    code, out, err = danlu("generate", run_copy.path, "--prompt", "炉火", "--max-tokens", 5, "--temperature", 0)
    made = json.loads(danlu("generate", run_copy.path, "--prompt", "炉火", "--max-tokens", 5, "--temperature", 0, "--json").out)
    assert (code, err) == (0, "")
    assert out == "炉火" + made[0]["text"] + "\n"


def test_generate_without_a_prompt_repeats_the_samples_of_the_run(danlu: Call, run_copy: RunFolder) -> None:
    samples = json.loads((run_copy.path / "samples.json").read_text())
    made = json.loads(danlu("generate", run_copy.path, "--json")[1])
    assert [(each["prompt"], each["text"]) for each in made] == [(each["prompt"], each["text"]) for each in samples]


def test_generate_streams(run_copy: RunFolder, danlu: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is on the terminal before the next is asked for."""
    seen: list[str] = []

    def pieces(*_: object) -> Iterator[str]:
        for word in ("炉", "火", "!"):
            seen.append(sys.stdout.getvalue() if hasattr(sys.stdout, "getvalue") else "")
            yield word

    monkeypatch.setattr("danlu.stages.generate", pieces)
    assert danlu("generate", run_copy.path, "--prompt", "P").out == "P炉火!\n"
    assert seen == ["P", "P炉", "P炉火"]


def test_train_on_a_finished_run_says_so(danlu: Call, run_copy: RunFolder) -> None:
    code, out, err = danlu("train", run_copy.path)
    assert (code, err) == (0, "")
    assert "already trained: 12 of 12 steps" in out
    assert out.endswith(f"report: {run_copy.path / 'report.html'}\n")


def test_a_new_name_makes_a_new_run_of_a_run_folder(danlu: Call, place: Path, run_copy: RunFolder) -> None:
    code, _, err = danlu("prepare", run_copy.path, "name=longer", "train.steps=20")
    assert (code, err) == (0, "")
    assert (place / "runs/longer/data/index.json").is_file()
    assert RunFolder(place / "runs/longer").load_recipe().train.steps == 20
    assert run_copy.load_recipe().train.steps == 12


def test_a_moved_run_folder_is_still_that_run(danlu: Call, place: Path, run_copy: RunFolder) -> None:
    run_copy.path.rename(place / "elsewhere")
    code, out, err = danlu("train", "elsewhere")
    assert (code, err) == (0, "")
    assert "already trained" in out
    assert not (place / "runs/elsewhere").exists()


def test_the_version_is_the_package_s(danlu: Call) -> None:
    import danlu as package

    assert danlu("--version") == (0, f"danlu, version {package.__version__}\n", "")

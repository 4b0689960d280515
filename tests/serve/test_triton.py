"""Triton without a tritonserver: the repository, the models against a stand-in, and a process in the server's place."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fake_triton
import pytest
from fake_triton import Request, words

from danlu import serving, stages
from danlu.run_folder import RunFolder
from danlu.serve.triton_server import environment, process
from danlu.triton_models import LOOK

Call = Callable[..., tuple[int, str, str]]
PROMPTS = ["炉火 the", "quick", "", "🐉 brown fox"]


@pytest.fixture(scope="module")
def repository(trained_folder: tuple[RunFolder, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from danlu.triton_export import add

    place = tmp_path_factory.mktemp("triton") / "models"
    assert add(trained_folder[0].path, place, "exact", True, 2048, False, print) == "exact"
    assert add(trained_folder[0].path, place, "small", False, 2048, False, print) == "small"
    return place


class Served:
    """Both models of a name, loaded as tritonserver does."""

    def __init__(self, backend: fake_triton.Backend, repository: Path, name: str) -> None:
        self.whole, self.stream = self.load(repository / name), self.load(repository / f"{name}_stream")
        tokens = re.search(
            r'"cache_tokens" value \{ string_value: "(\d+)"', (repository / f"{name}_stream/config.pbtxt").read_text()
        )
        assert tokens
        self.stream.initialize(fake_triton.arguments(repository, f"{name}_stream", {"cache_tokens": tokens[1]}))
        self.whole.initialize(fake_triton.arguments(repository, name, {}))
        backend.models[f"{name}_stream"] = self.stream

    @staticmethod
    def load(folder: Path) -> Any:
        found: dict[str, Any] = {}
        exec((folder / "1/model.py").read_text(), found)
        return found["TritonPythonModel"]()

    def end(self) -> None:
        self.whole.finalize()
        self.stream.finalize()


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Served]:
    backend = fake_triton.Backend()
    sys.modules[backend.__name__] = backend
    made = Served(backend, repository, "exact")
    yield made
    made.end()
    del sys.modules[backend.__name__]


@pytest.fixture(scope="module")
def expected(trained_folder: tuple[RunFolder, str]) -> list[str]:
    """What `danlu generate` says."""
    trained = stages.open_trained(trained_folder[0], print)
    settings = stages.sampling_settings(trained_folder[0].load_recipe(), {"temperature": 0, "max_tokens": 12})
    return ["".join(stages.generate(trained, prompt, settings)) for prompt in PROMPTS]


GREEDY = json.dumps({"max_tokens": 12, "temperature": 0})


def columns(response: Any) -> dict[str, Any]:
    return {each.name(): each.as_numpy() for each in response.output_tensors()}


def test_whole_answers_are_those_of_generate(served: Served, expected: list[str]) -> None:
    requests = [
        Request(text_input=words(*PROMPTS[:2], rows=True), sampling_parameters=words(GREEDY, GREEDY, rows=True)),
        Request(text_input=words(*PROMPTS[2:], rows=True), sampling_parameters=words(GREEDY, GREEDY, rows=True)),
    ]
    assert served.whole.execute(requests) is None
    answers = [columns(response) for request in requests for response in request.sender.responses()]
    texts = [text.decode() for answer in answers for text in answer["text_output"].reshape(-1)]
    assert texts == expected
    assert all(answer["text_output"].shape == answer["num_output_tokens"].shape == (2, 1) for answer in answers)
    assert {reason for answer in answers for reason in answer["finish_reason"].reshape(-1)} <= {b"stop", b"length"}


def test_pieces_add_up_to_the_same(served: Served, expected: list[str]) -> None:
    requests = [Request(text_input=words(prompt), sampling_parameters=words(GREEDY)) for prompt in PROMPTS]
    served.stream.execute(requests)
    for request, text in zip(requests, expected, strict=True):
        pieces = [columns(response) for response in request.sender.responses()]
        assert b"".join(piece["text_output"].item() for piece in pieces).decode() == text
        assert [bool(piece["finish_reason"].item()) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert 0 < sum(piece["num_output_tokens"].item() for piece in pieces) <= 12


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        (b"\xff", "{}", "text_input: not UTF-8 (at byte 0)"),
        ("the", "{", "sampling_parameters: not JSON"),
        ("the", "[" * 100_000, "sampling_parameters: not JSON"),
        ("the", "[]", "sampling_parameters: not a JSON object"),
        ("the", '{"stream": true}', "sampling_parameters: stream is nothing that can be set here"),
        ("the", '{"max_tokens": 0}', "sampling_parameters: max_tokens: Input should be greater than or equal to 1"),
        ("the", '{"tools": []}', "sampling_parameters: tools: Extra inputs are not permitted"),
        ("the " * 400, "{}", "shorten the prompt"),
    ],
)
def test_what_is_refused(served: Served, text: str | bytes, parameters: str, message: str) -> None:
    good, bad = (
        Request(text_input=words(each), sampling_parameters=words(how)) for each, how in (("a", GREEDY), (text, parameters))
    )
    served.stream.execute([bad, good])
    [error] = bad.sender.responses()
    assert (
        error.has_error() and message in error.error().message() and error.error().code() == fake_triton.TritonError.INVALID_ARG
    )
    assert not any(each.has_error() for each in good.sender.responses())
    mixed = Request(text_input=words("a", text, rows=True), sampling_parameters=words(GREEDY, parameters, rows=True))
    served.whole.execute([mixed])
    [error] = mixed.sender.responses()
    assert message in error.error().message()


def test_a_client_that_has_gone_is_computed_no_longer(served: Served) -> None:
    request = Request(text_input=words("the"), sampling_parameters=words('{"max_tokens": 100, "ignore_eos": true}'))
    request.sender.cancelled = True
    served.stream.execute([request])
    assert len(list(request.sender.responses())) < LOOK
    until = time.monotonic() + 30
    while served.stream.worker.engine.busy and time.monotonic() < until:
        time.sleep(0.01)
    assert served.stream.worker.engine.counts["ended_cancelled"] == 1
    assert served.stream.worker.engine.cache.held == 0


def test_too_many_at_once_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.stream.worker, "most_waiting", 0)
    request = Request(text_input=words("the", rows=True))
    served.whole.execute([request])
    [error] = request.sender.responses()
    assert "too many requests wait" in error.error().message()
    assert error.error().code() == fake_triton.TritonError.UNAVAILABLE


def test_an_engine_that_fails_is_told(served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(served.stream.worker.engine, "step", lambda: 1 / 0)
    request = Request(text_input=words("the", rows=True))
    served.whole.execute([request])
    [error] = request.sender.responses()
    assert "could not be finished" in error.error().message()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_the_repository(repository: Path, trained_folder: tuple[RunFolder, str], danlu: Call) -> None:
    small = serving.open_model(repository / "small_stream/1/model", print)
    assert (small.scheme, serving.open_model(repository / "exact_stream/1/model", print).scheme) == ("w8a8", "plain")
    assert "decoupled: true" in (repository / "small_stream/config.pbtxt").read_text()
    assert "dynamic_batching" in (repository / "small/config.pbtxt").read_text()
    command = ["triton", "export", trained_folder[0].path, repository, "--name", "small"]
    code, _, err = danlu(*command)
    assert code == 2 and "exists" in err and err.count("\n") == 1
    assert danlu(*command, "--replace")[0] == 0
    again = ["triton", "export", repository / "small_stream/1/model", repository, "--name", "again"]
    assert danlu(*again)[0] == 0  # 8-bit weights stay what they are
    weights = "1/model/model.safetensors"
    assert (repository / "again_stream" / weights).read_bytes() == (repository / "small_stream" / weights).read_bytes()
    code, _, err = danlu(*command[:-1], "a/b")
    assert code == 2 and "tritonserver wants letters" in err


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose tritonserver is a few lines of Python: it is ready at once, and has a child."""
    place = tmp_path / "own"
    programs = place / f"lib/python{environment.VERSION}/site-packages/pytriton/tritonserver/bin"
    programs.mkdir(parents=True)
    (place / environment.MARK).write_text(json.dumps({"python": environment.VERSION}))
    program = programs / "tritonserver"
    program.write_text(
        f"#!{sys.executable}\n"
        "import http.server, os, pathlib, subprocess, sys\n"
        "options = dict(one.split('=', 1) for one in sys.argv[1:])\n"
        "if pathlib.Path(options['--model-repository'], 'bad').exists():\n"
        "    sys.exit('I1 a] fine\\nE1 b] \"bad: no such thing\\\\n\\\\nAt: 1\"')\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "prefix = options['--backend-config'].rsplit('=', 1)[1]\n"
        "pathlib.Path('/dev/shm', prefix + 'left').touch()\n"
        "pathlib.Path(options['--model-repository'], 'pids').write_text(f'{os.getpid()} {child.pid} {prefix}')\n"
        "class Ready(http.server.BaseHTTPRequestHandler):\n"
        "    do_GET = lambda self: (self.send_response(200), self.end_headers())\n"
        "http.server.HTTPServer((options['--http-address'], int(options['--http-port'])), Ready).serve_forever()\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(environment, "_libpython", lambda: Path("/usr/lib"))
    return place


def gone(pid: int) -> bool:
    """It has ended; it may still wait to be asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("whom", "how", "code"),
    [("danlu", "SIGTERM", 0), ("danlu", "SIGINT", 0), ("danlu", "SIGKILL", -9), ("tritonserver", "SIGKILL", 1)],
)
def test_nothing_stays_behind(installed: Path, repository: Path, whom: str, how: str, code: int) -> None:
    ports = [each for name in ("--port", "--grpc-port", "--metrics-port") for each in (name, "0")]
    command = [sys.executable, "-m", "danlu", "triton", "serve", str(repository), "--environment", str(installed), *ports]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a suite that runs in the background ignores
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as started:
        assert started.stdout and started.stderr
        try:
            assert re.match(r"triton: http://127.0.0.1:\d+, grpc 127.0.0.1:\d+", started.stdout.readline()), started.stderr.read()
            assert "exact, exact_stream, small, small_stream" in started.stdout.readline()
            server, child, prefix = (repository / "pids").read_text().split()
            try:
                os.kill(started.pid if whom == "danlu" else int(server), getattr(signal, how))
                assert started.wait(30) == code
                assert ("tritonserver ended by itself: signal 9" in started.stderr.read()) == (whom == "tritonserver")
                until(lambda: gone(int(server)))
                if (whom, how) != ("danlu", "SIGKILL"):  # the real server ends what it has started; this one cannot
                    assert gone(int(child)) and not list(Path("/dev/shm").glob(f"{prefix}*"))
            finally:
                if not gone(int(child)):
                    os.kill(int(child), signal.SIGKILL)
                (Path("/dev/shm") / f"{prefix}left").unlink(missing_ok=True)
        finally:
            started.kill()


def test_what_cannot_be_served(
    installed: Path, repository: Path, danlu: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*arguments: object, code: int = 2) -> str:
        found, out, err = danlu("triton", "serve", *arguments)
        assert (found, out, err.count("\n")) == (code, "", 1)
        return err

    assert "no tritonserver here; install it with: danlu triton setup\n" in said(repository)
    assert "danlu triton setup --environment nowhere" in said(repository, "--environment", "nowhere")
    there = ["--environment", installed]
    assert "no such folder; make it with: danlu triton export MODEL none" in said("none", *there)
    (tmp_path / "empty").mkdir()
    assert "holds no model" in said("empty", *there)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        number = busy.getsockname()[1]
        assert f"the grpc port {number}: cannot be served: Address already in use" in said(
            repository, *there, "--port", 0, "--grpc-port", number
        )
    (tmp_path / "damaged" / "bad").mkdir(parents=True)
    (tmp_path / "damaged" / "bad" / "config.pbtxt").touch()
    free = ["--port", 0, "--grpc-port", 0, "--metrics-port", 0]
    assert said("damaged", *there, *free, code=1) == "danlu: tritonserver does not start: bad: no such thing\n"
    (installed / environment.MARK).write_text('{"python": "2.7"}')
    assert "is for Python 2.7" in said(repository, *there)


def test_what_cannot_be_set_up(danlu: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    code, _, err = danlu("triton", "setup", "--environment", tmp_path / "mine")
    assert code == 2 and "exists and is no environment" in err and (tmp_path / "mine" / "notes").exists()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    code, _, err = danlu("triton", "setup", "--environment", tmp_path / "new")
    assert code == 1 and err.startswith("danlu: danlu triton setup: pip fails: ") and err.count("\n") == 1
    code, _, err = danlu("triton", "serve", tmp_path, "--environment", tmp_path / "new")
    assert code == 2 and "install it with" in err
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "for Linux on x86-64" in danlu("triton", "setup", "--environment", tmp_path / "other")[2]


def test_the_pins_are_those_of_one_numpy() -> None:
    pins = Path(process.__file__).with_name("constraints.txt").read_text()
    assert re.search(r"^nvidia-pytriton==0\.7\.0$", pins, re.MULTILINE)
    assert re.search(r"^numpy==1\.", pins, re.MULTILINE)

"""`danlu serve` as a process: it opens a run, answers, and ends gently."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from danlu import serving, stages
from danlu.errors import UserError
from danlu.run_folder import RunFolder


def test_serve_answers_as_generate_does(trained_folder: tuple[RunFolder, str]) -> None:
    run = trained_folder[0]
    trained = stages.open_trained(run, print)
    settings = stages.sampling_settings(run.load_recipe(), {"temperature": 0, "max_tokens": 12})
    expected = "".join(stages.generate(trained, "炉火 the", settings))
    command = [sys.executable, "-m", "danlu", "serve", str(run.path), "--port", "0", "--cache-tokens", "1024", "--name", "it"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.fullmatch(r"serve: (http://127.0.0.1:\d+)/\n", process.stdout.readline())
            assert address
            client = openai.OpenAI(base_url=f"{address[1]}/v1", api_key="any", max_retries=0)
            made = client.completions.create(model="it", prompt="炉火 the", max_tokens=12, temperature=0)
            assert made.choices[0].text == expected
            chat = client.chat.completions.create(model="it", messages=[{"role": "user", "content": "the"}], max_tokens=3)
            assert chat.usage is not None and chat.usage.prompt_tokens > 5  # a plain template, as the run has none
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)
        finally:
            process.kill()  # without effect on one that has ended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["."], "neither a run"),
        (["RUN", "--host", "0.0.0.0"], "give a key with --api-key"),
        (["RUN", "--host", "0.0.0.0", "--api-key", ""], "give a key with --api-key"),
        (["RUN", "--port", "0", "--device", "nothing"], "--device nothing: cannot be used here"),
    ],
)
def test_what_cannot_be_served(
    danlu: Callable[..., tuple[int, str, str]],
    trained_folder: tuple[RunFolder, str],
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = danlu("serve", *(trained_folder[0].path if each == "RUN" else each for each in arguments))
    assert code == 2 and message in err and err.count("\n") == 1


def test_an_export_opens_with_its_template_and_its_ends(trained_folder: tuple[RunFolder, str], tmp_path: Path) -> None:
    from danlu import export

    place = export.export(stages.open_trained(trained_folder[0], print), tmp_path / "it", "fp32", False)
    (place / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")
    (place / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    model = serving.open_model(place, print).model
    assert model.ends == {1, 7}
    assert model.conversation([{"role": "user", "content": "the"}]) == model.tokenizer.encode("the!")


def test_a_run_answers_by_the_template_that_it_was_trained_with(trained_folder: tuple[RunFolder, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_folder[0].path, run)
    plain = serving.open_model(run, print).model
    asked = [{"role": "user", "content": "the"}]
    assert plain.tokenizer.decode(plain.conversation(asked)) == "User: the\nAssistant:"
    settings = run / "data" / "tokenizer_config.json"
    told = json.loads(settings.read_text()) | {"chat_template": "{% for m in messages %}{{ m.content }}!{% endfor %}"}
    settings.write_text(json.dumps(told))
    model = serving.open_model(run, print).model
    assert model.tokenizer.decode(model.conversation(asked)) == "the!"
    (run / "data" / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
    with pytest.raises(UserError, match="messages: the chat template says: no user"):
        serving.open_model(run, print).model.conversation(asked)

"""The documents are kept: their commands run, their links lead somewhere, and the quick start does what it promises.

One folder stands for a reader's: the recipes and documents of the repository, and some text of his own in corpus/.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "README.zh-CN.md",
    *dict.fromkeys(ROOT / page for page in re.findall(r"\]\((docs/[\w-]+\.md)", README.read_text("utf-8"))),
]
WORDS = "炉火 纯青 百炼 成钢 the quick brown fox jumps over lazy dog while water boils and iron melts in fire"
QUICKSTART = "danlu run recipes/quickstart.yaml"
ABSENT = (
    "fastwarc",
    "gguf",
    "openai",
    "paddle",
    "peft",
    "ray",
    "resiliparse",
    "starlette",
    "transformers",
    "uvicorn",
    "zstandard",
)
IDS = [page.name for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def statements(block: str) -> Iterator[str]:
    """Shell commands of a block: lines, with what a backslash or a here-document carries on."""
    lines = iter(block.splitlines())
    for line in lines:
        statement = line
        while statement.endswith("\\"):
            statement += "\n" + next(lines)
        if document := re.search(r"<<'(\w+)'", statement):
            for line in lines:
                statement += "\n" + line
                if line == document[1]:
                    break
        if statement.strip():
            yield statement


COMMANDS = [(page.name, statement) for page in PAGES for block in blocks(page, "sh") for statement in statements(block)]


def environment() -> dict[str, str]:
    """With danlu and python on the path, as in an activated environment; as many threads as a reader has."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        "PATH": path,
        "HF_HUB_OFFLINE": "1",
    }


def bash(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=place, env=environment(), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reader")
    for name in ("recipes", "docs"):
        shutil.copytree(ROOT / name, place / name)
    for page in (README, ROOT / "README.zh-CN.md"):
        shutil.copy(page, place)
    (place / "corpus").mkdir()
    words = WORDS.split()
    for number in range(60):
        text = " ".join(words[(number * 7 + at * at * (1 + number % 5)) % len(words)] for at in range(200))
        (place / "corpus" / f"{number}.txt").write_text(f"{number} {text}\n", encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def quickstart(place: Path) -> subprocess.CompletedProcess[str]:
    """The real quick start, with what its own target installs: what only other extras bring cannot be imported."""
    bare = place / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n")
    done = bash(f"PYTHONPATH={bare} {QUICKSTART}", place)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done


@pytest.mark.slow
def test_the_quick_start_learns(quickstart: subprocess.CompletedProcess[str], place: Path) -> None:
    summary = json.loads((place / "runs/quickstart/summary.json").read_text("utf-8"))
    assert summary["last_validation_loss"] < 0.6 * summary["first_loss"]
    assert summary["tokens_per_second"] > 0
    assert not [name for name, value in summary.items() if isinstance(value, dict | list) and name != "findings"]
    samples = json.loads((place / "runs/quickstart/samples.json").read_text("utf-8"))
    assert len(samples) >= 3 and all(sample["text"] for sample in samples)
    assert all(sample["text"].rstrip("\n") in quickstart.stdout for sample in samples)


@pytest.mark.slow
def test_the_report_of_the_quick_start_needs_no_network(quickstart: subprocess.CompletedProcess[str], place: Path) -> None:
    page = (place / "runs/quickstart/report.html").read_text("utf-8")
    outside: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            outside.extend(f"{tag} {value}" for name, value in attrs if name in ("src", "href", "srcset", "action", "data"))

    Links().feed(page)
    assert not [link for link in outside if not re.fullmatch(r"\w+ (#.*|data:.*)", link)]
    assert not re.findall(r"@import|url\(\s*['\"]?(?!data:|#)", page)
    assert not re.findall(r"\b(?:fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|sendBeacon)\b\s*\(", page)
    for sample in json.loads((place / "runs/quickstart/samples.json").read_text("utf-8")):
        assert json.dumps(sample["prompt"])[1:-1].replace("<", "\\u003c") in page


@pytest.mark.slow
def test_the_commands_that_the_quick_start_recommends(quickstart: subprocess.CompletedProcess[str], place: Path) -> None:
    recommended = [line.strip() for line in quickstart.stdout.split("Worth trying next\n")[1].splitlines()]
    assert len(recommended) == 3
    assert any("README.md" in command for command in recommended)
    for command in recommended:
        done = bash(command, place)
        assert (done.returncode, done.stderr) == (0, ""), f"{command}\n{done.stderr}"


@pytest.fixture(scope="module")
def commands(quickstart: subprocess.CompletedProcess[str], place: Path) -> set[str]:
    """All that the documents show, run in their order."""
    ran = {QUICKSTART}
    for page, command in COMMANDS:
        if command in ran or command.startswith("make") or command == ". .venv/bin/activate":
            continue
        ran.add(command)
        done = bash(command, place)
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout[-2000:]}\n{done.stderr}"
        if "--json" in command:
            json.loads(done.stdout)
    return ran


@pytest.mark.slow
def test_every_command_of_the_documents_works(commands: set[str], place: Path) -> None:
    assert len(commands) > 15
    # What the commands were meant to leave.
    assert (place / "my-model/model.safetensors").is_file()
    assert {path.name for path in (place / "runs").iterdir()} >= {"quickstart", "mine", "hotter", "tuned", "half", "continued"}


@pytest.mark.slow
def test_every_python_block_of_the_documents_works(commands: set[str], place: Path) -> None:
    found = [(page.name, block) for page in PAGES for block in blocks(page, "python")]
    assert found
    for page, block in found:
        (place / "block.py").write_text(block, encoding="utf-8")
        done = bash("python block.py", place)
        assert done.returncode == 0, f"{page}:\n{block}\n{done.stderr}"
        assert ("import os" if "transformers" in block else ") True") in done.stdout, done.stdout


@pytest.mark.parametrize("name", IDS)
def test_shell_blocks_hold_nothing_that_is_not_run(name: str) -> None:
    """Only danlu, make, and what prepares for them: anything else would pass unseen or is not a command to show."""
    for page, command in COMMANDS:
        if page == name:
            assert re.match(r"danlu |make( |$)|cat > [\w.-]+ <<'EOF'\n|\. \.venv/bin/activate$", command), command


@pytest.mark.parametrize(
    "command", sorted({command.split("#")[0].strip() for _, command in COMMANDS if command.startswith("make")})
)
def test_make_targets_exist(command: str) -> None:
    done = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing to be done" not in done.stdout and done.stdout.strip()


def test_make_in_a_fresh_clone(tmp_path: Path) -> None:
    """Both targets make the environment first; the quick start installs one engine, the tests install both."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def plan(target: str) -> str:
        return subprocess.run(
            ["make", "--no-print-directory", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    quick, everything = plan("quickstart"), plan("test")
    for made in (quick, everything):
        assert made.index("-m venv .venv") < made.index("pip install") < len(made)
    assert quick.rstrip().endswith(f".venv/bin/{QUICKSTART}")
    assert "paddle" not in quick and "paddle" in everything
    order = [everything.index(step) for step in ("paddle", "ruff check", "ruff format --check", "mypy", "pytest")]
    assert order == sorted(order)
    listed = subprocess.run(["make", "--no-print-directory"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"make ([\w-]+)", listed)) >= {target for target in targets if not target.startswith(".")}
    assert not (tmp_path / ".venv").exists()


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, blanks to hyphens, punctuation gone."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme() -> None:
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == {page.name for page in PAGES if page.parent.name == "docs"}
    chinese = (ROOT / "README.zh-CN.md").read_text("utf-8")
    assert all(f"docs/{page.name}" in chinese for page in PAGES if page.parent.name == "docs")


def test_both_readmes_have_the_same_shape() -> None:
    """Headings, commands, rows and links; the words are each language's own."""
    english, chinese = (page.read_text("utf-8") for page in PAGES[:2])
    for pattern in (r"^#+ ", r"^- ", r"^\| `danlu [a-z -]+", r"^\| \[", r"\]\(docs/[^)]*\)"):
        counts = [len(re.findall(pattern, text, re.MULTILINE)) for text in (english, chinese)]
        assert counts[0] == counts[1], pattern
    verbs = [re.findall(r"^\| `danlu ([a-z-]+(?: [a-z-]+)?)", text, re.MULTILINE) for text in (english, chinese)]
    assert verbs[0] == verbs[1]


def test_the_table_of_verbs_is_complete() -> None:
    import click

    from danlu.cli import cli

    def verbs(group: click.Group, above: str = "") -> Iterator[str]:
        for name, command in group.commands.items():
            if name == getattr(group, "default", None):  # what is done where no verb is named
                yield above.strip()
                continue
            if command.hidden:  # what danlu starts by itself
                continue
            if isinstance(command, click.Group):
                yield from verbs(command, f"{above}{name} ")
            else:
                yield f"{above}{name}"

    assert re.findall(r"^\| `danlu ([a-z-]+(?: [a-z-]+)?)", README.read_text("utf-8"), re.MULTILINE) == list(verbs(cli))


def test_the_messages_that_are_explained_exist() -> None:
    """Each piece of a message in docs/errors.md stands in the source, where braces hold what the dots stand for."""
    source = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    source = re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", source))
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "errors.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 15
    for message in rows:
        for piece in message.split("…"):
            assert piece.strip(" ()") in source, message


def test_the_picture_is_small() -> None:
    picture = (ROOT / "docs" / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 300_000

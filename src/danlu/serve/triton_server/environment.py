"""The environment in which tritonserver runs: the PyPI package that ships it, in a folder of its own.

That package needs numpy below 2, which danlu's own environment does not have. So numpy and tritonserver come from here, and all
else, danlu and its framework, from the environment that danlu runs in: both are of the same Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import sysconfig
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from danlu.errors import DanluError, UserError
from danlu.files import why, write_json

FOLDER = Path(".tritonserver")
PACKAGE = "nvidia-pytriton"
MARK = "danlu.json"
"""Written when all is installed; says for which Python."""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NEWEST = (3, 12)
"""The last Python for which there is a numpy below 2."""
STUB = "triton_python_backend_stub"
SEARCHED = "DANLU_TRITON_PATH"
PATH_FILE = f"import os, sys; sys.path.extend(filter(None, os.environ.get('{SEARCHED}', '').split(os.pathsep)))\n"
"""The stub does not heed PYTHONPATH. What it finds by this line comes behind the environment's own packages."""


class Server(NamedTuple):
    """What starts tritonserver."""

    command: list[str]
    environment: dict[str, str]


def set_up(folder: Path) -> None:
    """Make the environment by pip, anew if it was begun before.

    UserError: not on this system or with this Python, or the folder is something else. DanluError: pip fails.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise UserError(f"{PACKAGE} is for Linux on x86-64; use a tritonserver of your own with `danlu triton export`")
    if sys.version_info[:2] > NEWEST:
        raise UserError(f"{PACKAGE} needs numpy below 2, which ends at Python {'.'.join(map(str, NEWEST))}; this is {VERSION}")
    _libpython()
    if folder.exists() and not (folder / "pyvenv.cfg").is_file():
        raise UserError(f"{folder} exists and is no environment; name another with --environment")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)], "the environment cannot be made")
        with resources.as_file(resources.files(__package__).joinpath("constraints.txt")) as pins:
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            _run([*pip, "-r", str(pins)], "pip fails")
        _add_backend(folder)
        (_packages(folder) / "danlu.pth").write_text(PATH_FILE, encoding="utf-8")
        write_json(folder / MARK, {"python": VERSION})
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {why(error)}; name another folder with --environment") from None


def server(folder: Path) -> Server:
    """The tritonserver of an environment. UserError: it is not set up, or for another Python."""
    try:
        python = json.loads((folder / MARK).read_text(encoding="utf-8"))["python"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder}: no tritonserver here; install it with: danlu triton setup{_named(folder)}") from None
    if python != VERSION:
        raise UserError(
            f"{folder} is for Python {python}, this is {VERSION}; make it anew with: danlu triton setup{_named(folder)}"
        )
    packages = _packages(folder)
    own = [str(Path(__file__).parents[3]), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        own.append(site.getusersitepackages())
    paths = {
        SEARCHED: own,
        "LD_LIBRARY_PATH": [str(_libpython()), str(packages / "nvidia_pytriton.libs"), os.environ.get("LD_LIBRARY_PATH", "")],
        "PATH": [str(folder.resolve() / "bin"), os.environ.get("PATH", "")],
    }
    joined = {name: os.pathsep.join(filter(None, parts)) for name, parts in paths.items()}
    command = [str(packages / "pytriton/tritonserver/bin/tritonserver"), f"--backend-directory={folder.resolve() / 'backends'}"]
    return Server(command, {**os.environ, **joined})


def _named(folder: Path) -> str:
    return "" if folder == FOLDER else f" --environment {folder}"


def _packages(folder: Path) -> Path:
    return folder.resolve() / "lib" / f"python{VERSION}" / "site-packages"


def _add_backend(folder: Path) -> None:
    """The wheel keeps the program that runs Python models apart, one for each Python."""
    shipped = _packages(folder) / "pytriton/tritonserver"
    backend = folder / "backends/python"
    shutil.copytree(shipped / "backends/python", backend)
    shutil.copyfile(shipped / "python_backend_stubs" / VERSION / STUB, backend / STUB)
    (backend / STUB).chmod(0o755)


def _libpython() -> Path:
    """The folder of this interpreter as a library, which the stub loads. UserError: there is none."""
    name = f"libpython{VERSION}.so.1.0"
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    if not (folder / name).is_file():
        try:
            ctypes.CDLL(name)
        except OSError:
            raise UserError(
                f"{name} is not there, so tritonserver cannot run this Python; install it (Debian: libpython{VERSION}), or run "
                "danlu by a Python that has it"
            ) from None
    return folder


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise DanluError(f"danlu triton setup: {problem}: {said[-1].strip()}")

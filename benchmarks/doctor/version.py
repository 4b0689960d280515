"""Which code a result is of, so that results of different code are not taken for one benchmark."""

from __future__ import annotations

import hashlib
from pathlib import Path

import danlu

APART = {"cli", "compress", "launch", "plan", "pretrained", "serve"}
"""Parts of danlu that no run of the benchmark enters."""
UNKNOWN = "not noted"
"""The version of results that were kept without one."""


def version() -> str:
    """A digest of all that an outcome depends on: danlu, rules included, and the faults and how they are run."""
    package, here = Path(danlu.__file__).parent, Path(__file__).parent
    digest = hashlib.sha256()
    for folder, pattern in ((package, "**/*.py"), (here, "fault*.py"), (here, "tuning.py"), (here, "worker.py")):
        for path in sorted(folder.glob(pattern)):
            if folder == package and path.relative_to(package).parts[0] in APART:
                continue
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]

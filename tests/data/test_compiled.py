"""What is compiled when a job begins: each inner loop once, for one kind of arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from danlu.data.curate.job import _load, settings_of
from danlu.data.read import Document
from danlu.recipe.data_sections import DataSection

stages = dict.fromkeys(("quality", "quality_model", "toxicity"), {}) | {"dedup": {"threshold": 0.8, "paragraphs": {}}}
settings = settings_of(DataSection.model_validate({"sources": [{"path": "a"}], "curate": stages}))
_load(settings)
for stage in settings.stages:
    stage.apply([Document("A good day to all of you, my friends. 今天天气很好。", 0, "x")])
found = {
    f"{name}.{one}": len(loop.signatures)
    for name, module in list(sys.modules.items()) if name.startswith("danlu.data.")
    for one, loop in vars(module).items() if hasattr(loop, "signatures") and loop.py_func.__module__ == name
}
print(json.dumps(found))
"""


def test_each_inner_loop_is_compiled_for_one_kind_of_arguments(tmp_path: Path) -> None:
    anew = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}  # what comes from the cache does not tell of the loops inside
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=anew, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert sum(found.values()) > 20
    assert not {name: count for name, count in found.items() if count > 1}

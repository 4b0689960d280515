"""What is compiled when a job begins: each inner loop once, for one kind of arguments."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_each_inner_loop_is_compiled_for_one_kind_of_arguments() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert sum(found.values()) > 20
    assert not {name: count for name, count in found.items() if count > 1}

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from danlu.errors import UserError
from danlu.recipe import parse

Tree = dict[str, Any]
Refusal = Callable[..., str]


@pytest.fixture
def tree() -> Tree:
    """The smallest recipe that is valid."""
    return {"name": "first", "model": {"preset": "llama-5m"}, "data": {"sources": [{"path": "corpus/*.txt"}]}}


@pytest.fixture
def refusal(tree: Tree) -> Refusal:
    """The one line that refuses the smallest recipe with some overrides or sections put over it."""

    def refuse(*overrides: str, **sections: Any) -> str:
        with pytest.raises(UserError) as caught:
            parse({**tree, **sections}, overrides)
        assert caught.value.exit_code == 2
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    return refuse

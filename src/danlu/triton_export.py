"""A model into a repository of tritonserver: what `danlu triton export` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from danlu import export, quantizing, serving
from danlu.serve.triton_server import repository


def add(
    path: Path, folder: Path, name: str | None, keep: bool, cache_tokens: int, replace: bool, report: Callable[[str], None]
) -> str:
    """Write the model at ``path`` into the repository with 8-bit weights, or, with ``keep``, as it is; returns its name.

    UserError: it cannot be opened, its name does not suit, or the repository has one of that name that is not to be replaced.
    """
    opened = serving.open_model(path, report, name)
    name = opened.model.name
    repository.check_name(name)
    whole, stream = folder / name, folder / f"{name}{repository.STREAM}"
    for place in (whole, stream):
        export.check(place, replace, repository.CONFIG)
    scheme = "w8a8" if opened.scheme == "plain" and not keep else opened.scheme
    arrays = quantizing.arrays(opened, scheme)
    with export.written(stream, replace, repository.CONFIG) as partial:
        quantizing.write(opened, path, repository.write_stream(partial, name, cache_tokens), arrays, scheme)
    with export.written(whole, replace, repository.CONFIG) as partial:
        repository.write_whole(partial, name)
    return name

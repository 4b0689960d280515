"""Copies that must be equal: the same parameter on the ranks that replicate it, down to the last bit."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping

from paddle import Tensor

from danlu.engines.paddle.fully_sharded import held, is_split, whole
from danlu.engines.paddle.layout import Layout
from danlu.engines.paddle.pieces import split_dimension
from danlu.model.drawing import EMBEDDING, HEAD

_NAMED = 3


def differences(parameters: Mapping[str, Tensor], layout: Layout, tied: bool) -> list[str]:
    """Which parameters differ between which ranks that replicate them; the same on every rank. All ranks must call.

    Data ranks replicate all of them below ZeRO 3, tensor ranks those that tensor parallelism does not split, and the two ends of
    a pipeline the tied embeddings.
    """
    if layout.hcg is None:
        return []
    own = {}
    for name, parameter in parameters.items():
        copy = tied and name == HEAD
        # What ZeRO 3 keeps of the two embeddings are not the same entries of both.
        here = whole(parameter, layout) if tied and name in (EMBEDDING, HEAD) else held(parameter, layout)
        array = here.numpy().T if copy else here.numpy()
        place = [layout.tensor_rank if split_dimension(name) is not None else -1, layout.data_rank if is_split(parameter) else -1]
        own[f"{EMBEDDING if copy else name}@{place}"] = hashlib.blake2b(array.tobytes(order="C"), digest_size=8).hexdigest()
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, digests in enumerate(layout.gather(own)):
        for key, digest in digests.items():
            found[key][rank] = digest
    different: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for key, digests in found.items():
        if len(set(digests.values())) > 1:
            different[tuple(digests)].append(key.partition("@")[0])
    return sorted(_described(ranks, names) for ranks, names in different.items())


def _described(ranks: tuple[int, ...], names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more} on ranks {', '.join(map(str, ranks))}"

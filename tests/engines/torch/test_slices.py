"""Slices of tensors: they cover every entry once in every layout, and other programs read what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from danlu.engines.torch.engine import TorchEngine
from danlu.engines.torch.layout import Layout
from danlu.engines.torch.pieces import own_region, written_region
from danlu.engines.torch.safetensors_file import write_file
from danlu.engines.torch.slices import Slice, stored, write_slices
from danlu.errors import UserError

EngineOf = Callable[..., TorchEngine]
BatchOf = Callable[..., dict[str, Tensor]]
NAMES = ("pipeline", "replicate", "shard", "tensor")


@pytest.fixture
def places() -> Iterator[Callable[[tuple[int, ...]], Iterator[Layout]]]:
    """The layout as each of its processes sees it, without any other process."""

    def each(sizes: tuple[int, ...]) -> Iterator[Layout]:
        world = int(np.prod(sizes))
        for rank in range(world):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
            mesh = init_device_mesh("cpu", sizes, mesh_dim_names=NAMES)
            yield Layout(sizes[1] * sizes[2], sizes[3], sizes[0], mesh)
            dist.destroy_process_group()

    yield each
    if dist.is_initialized():
        dist.destroy_process_group()


def split(layout: Layout, shape: tuple[int, ...], tensor_dim: int | None) -> Tensor:
    """A parameter without content, split as tensor parallelism along a dimension and then ZeRO would."""
    mesh = layout.submesh("replicate", "shard", "tensor")
    placements = [Replicate(), Shard(0), Replicate() if tensor_dim is None else Shard(tensor_dim)]
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(torch.empty(0), mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


@pytest.mark.parametrize("tensor_dim", [None, 0, 1])
@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((1, 2, 1, 2), (7, 5)), ((1, 1, 3, 2), (7, 5)), ((1, 1, 4, 2), (3, 4)), ((1, 8, 1, 1), (3, 2)), ((1, 1, 5, 1), (11, 2))],
)
def test_every_entry_is_held_as_often_as_there_are_replicas_and_written_once(
    places: Any, sizes: tuple[int, ...], shape: tuple[int, ...], tensor_dim: int | None
) -> None:
    """7 rows, and 3, divide by nothing here: some processes hold nothing at all."""
    held, written = np.zeros(shape, int), np.zeros(shape, int)
    for layout in places(sizes):
        parameter = split(layout, shape, tensor_dim)
        held[own_region(parameter)] += 1
        region = written_region(parameter, layout)
        if region is not None:
            assert written[region].size > 0
            written[region] += 1
    assert (held == sizes[1] * (sizes[3] if tensor_dim is None else 1)).all()
    assert (written == 1).all()


def test_a_tensor_that_nothing_splits_is_shared_out_over_all(places: Any) -> None:
    regions = [written_region(torch.empty(8, 2), layout) for layout in places((1, 2, 1, 2))]
    assert [region and region[0] for region in regions] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
    assert [written_region(torch.tensor(1.0), layout) for layout in places((1, 2, 1, 2))] == [(), None, None, None]


def test_the_cuts_are_those_of_torch(places: Any) -> None:
    """Tensor parallelism first, then ZeRO, each as torch.chunk."""
    whole = torch.arange(13 * 3).reshape(13, 3)
    for layout, (shard, tensor) in zip(places((1, 1, 3, 2)), product(range(3), range(2)), strict=True):
        pieces = whole.chunk(2)[tensor].chunk(3)
        wanted = pieces[shard] if shard < len(pieces) else whole[:0]
        assert torch.equal(whole[own_region(split(layout, (13, 3), 0))], wanted)


def test_a_file_has_the_bytes_of_the_library(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    tensors = {
        "b.weight": torch.randn(7, 3, generator=random),
        "a.weight": torch.randn(3, 7, generator=random).T.contiguous(),
        "step": torch.tensor(3.0),
        "半": torch.zeros(0, 4),
        "random.cpu": torch.get_rng_state(),
    }
    write_file(tensors, tmp_path / "ours")
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o666 & ~_umask()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8])
def test_every_type_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    """Transposed, so that its entries do not lie one behind the other."""
    tensor = torch.arange(12).reshape(3, 4).to(dtype).T
    write_file({"a": tensor}, tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")["a"]
    assert found.dtype == dtype and torch.equal(found, tensor)


def _umask() -> int:
    import os

    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.fixture
def in_slices(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> tuple[TorchEngine, Path, dict[str, Any]]:
    """A trained engine, and its checkpoint as three processes would leave it: columns 0-9 and 10-, and the former by rows."""
    engine = engine_of()
    engine.train_step(batch_of(), 1e-2)
    state = engine.save(tmp_path)
    for kind, file in (("weights", "model.safetensors"), ("optimizer", "optimizer-00000.safetensors")):
        whole = load_file(tmp_path / file)
        (tmp_path / file).unlink()
        parts: list[dict[str, Slice]] = [{}, {}, {}]
        for name, tensor in whole.items():
            if name.startswith("random") or tensor.ndim == 0:
                parts[0][name] = Slice((0,) * tensor.ndim, tensor)
            elif tensor.ndim == 1:
                parts[0][name], parts[2][name] = Slice((0,), tensor[:5]), Slice((5,), tensor[5:])
            else:
                parts[2][name] = Slice((0, 0), tensor[:3, :10])
                parts[0][name], parts[1][name] = Slice((3, 0), tensor[3:, :10]), Slice((0, 10), tensor[:, 10:])
        for number, part in enumerate(parts):
            write_slices(part, tmp_path / f"{kind}-{number:05d}.safetensors")
    return engine, tmp_path, state


def states_of(engine: TorchEngine) -> dict[str, Tensor]:
    moments = {name: tensor for name, _, tensor in engine.optimizer.tensors(set(engine.own))}
    return {name: tensor.detach().clone() for name, tensor in (engine.own | moments).items()}


def test_slices_are_put_together(in_slices: Any, engine_of: EngineOf, batch_of: BatchOf) -> None:
    engine, folder, state = in_slices
    other = engine_of("train.seed=9")
    other.load(folder, state)
    wanted, found = states_of(engine), states_of(other)
    assert wanted.keys() == found.keys() and len(wanted) > 60
    assert all(torch.equal(tensor, found[name]) for name, tensor in wanted.items())
    assert engine.train_step(batch_of(seed=2), 1e-3) == other.train_step(batch_of(seed=2), 1e-3)


def test_torch_reads_them_too(in_slices: Any) -> None:
    engine, folder, _ = in_slices
    wanted = states_of(engine)
    found = {name: torch.full_like(tensor, torch.nan) for name, tensor in wanted.items()}
    load(found, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert all(torch.equal(tensor, found[name]) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("number", "said"), [(0, "entries of .* are in no file; the checkpoint is not complete"), (1, "has shape"), (2, "has shape")]
)
def test_a_file_of_weights_that_is_missing(in_slices: Any, engine_of: EngineOf, number: int, said: str) -> None:
    _, folder, state = in_slices
    (folder / f"weights-{number:05d}.safetensors").unlink()
    with pytest.raises(UserError, match=said):
        engine_of().load(folder, state)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_of_moments_that_is_missing(in_slices: Any, engine_of: EngineOf, number: int) -> None:
    _, folder, state = in_slices
    (folder / f"optimizer-{number:05d}.safetensors").unlink()
    with pytest.raises(UserError, match=r"\d+ entries of exp_avg\S+ are in no file; the checkpoint is not complete"):
        engine_of().load(folder, state)


UNREADABLE = ["{", "[]", '{"a": 1}', '{"a": {}}', '{"a": {"saved_offsets": ["x"]}}', '{"a": {"saved_offsets": 1}}']


@pytest.mark.parametrize("told", UNREADABLE)
def test_places_that_cannot_be_read(tmp_path: Path, told: str) -> None:
    save_file({"a": torch.zeros(3)}, tmp_path / "a.safetensors", metadata={"DCP_SHARDING_INFO": told})
    with pytest.raises(UserError, match=r"a\.safetensors: where its slices belong cannot be read"):
        list(stored([tmp_path / "a.safetensors"]))


def test_a_copy_is_not_moved_by_training(engine_of: EngineOf, batch_of: BatchOf, tmp_path: Path) -> None:
    """And the next one lies in the same memory."""
    engine, places = engine_of(), []
    for number in range(2):
        engine.train_step(batch_of(seed=number), 1e-2)
        for name in ("at once", "later"):
            (tmp_path / f"{name} {number}").mkdir()
        snapshot = engine.snapshot(copy=True)
        engine.save(tmp_path / f"at once {number}")
        engine.train_step(batch_of(seed=5), 1e-2)
        snapshot.write(tmp_path / f"later {number}")
        places.append({name: held.data_ptr() for name, held in engine.buffers.held.items() if not name.startswith("random")})
        for file in ("model.safetensors", "optimizer-00000.safetensors"):
            assert (tmp_path / f"at once {number}" / file).read_bytes() == (tmp_path / f"later {number}" / file).read_bytes()
    assert places[0] == places[1] and len(places[0]) > 60

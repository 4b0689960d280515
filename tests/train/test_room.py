"""What is offloaded has a place to go, or nothing starts: the need, what is free, and a way out that works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.errors import UserError
from danlu.model.counts import parameter_count
from danlu.model.presets import preset
from danlu.recipe import Recipe
from danlu.train import room
from danlu.train.room import check_room, no_disk
from danlu.watch.format import bytes_text

RecipeOf = Callable[..., Recipe]
SHAPE = preset("llama-42m")
MOMENTS = 8 * parameter_count(SHAPE)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """So many bytes are free, on the disk and in memory."""

    def make(size: int) -> None:
        monkeypatch.setattr(room.probes, "disk_free_bytes", lambda _folder: size)
        monkeypatch.setattr(room.probes, "available_memory_bytes", lambda: size)

    return make


def refused(recipe: Recipe, run: Path) -> str:
    with pytest.raises(UserError) as error:
        check_room(recipe, SHAPE, run)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_without_offload_nothing_is_needed(recipe_of: RecipeOf, free: Callable[[int], None], tmp_path: Path) -> None:
    free(0)
    check_room(recipe_of(), SHAPE, tmp_path)


@pytest.mark.parametrize("place", ["host", "disk"])
def test_moments_take_eight_bytes_a_parameter(
    recipe_of: RecipeOf, free: Callable[[int], None], tmp_path: Path, place: str
) -> None:
    recipe = recipe_of(f"memory.offload_optimizer={place}", "train.device=auto")
    free(MOMENTS)
    check_room(recipe, SHAPE, tmp_path)
    free(MOMENTS - 1)
    message = refused(recipe, tmp_path)
    assert f"memory.offload_optimizer: {place} needs {bytes_text(MOMENTS)}" in message
    assert f"{bytes_text(MOMENTS - 1)}" in message
    assert ("memory.offload_folder" if place == "disk" else "offload to disk") in message


def test_every_replica_has_its_own_unless_they_are_split(
    recipe_of: RecipeOf, free: Callable[[int], None], tmp_path: Path
) -> None:
    free(MOMENTS)
    replicas = ("memory.offload_optimizer=disk", "parallel.data=2")
    assert "parallel.zero_stage 1, which needs 1/2 of it" in refused(recipe_of(*replicas), tmp_path)
    check_room(recipe_of(*replicas, "parallel.zero_stage=1"), SHAPE, tmp_path)


def test_shards_are_needed_beside_the_moments(recipe_of: RecipeOf, free: Callable[[int], None], tmp_path: Path) -> None:
    zero_3 = ("parallel.data=2", "parallel.zero_stage=3", "memory.offload_parameters=disk")
    free(MOMENTS)
    check_room(recipe_of(*zero_3), SHAPE, tmp_path)
    assert bytes_text(MOMENTS * 3 // 2) in refused(recipe_of(*zero_3, "memory.offload_optimizer=disk"), tmp_path)


def test_host_memory_of_a_cpu_run_is_not_asked_for(recipe_of: RecipeOf, free: Callable[[int], None], tmp_path: Path) -> None:
    free(0)
    check_room(recipe_of("memory.offload_optimizer=host", "train.device=cpu"), SHAPE, tmp_path)


def test_a_folder_that_is_not_there(recipe_of: RecipeOf, tmp_path: Path) -> None:
    recipe = recipe_of("memory.offload_optimizer=disk", f"memory.offload_folder={tmp_path / 'none'}")
    assert "memory.offload_folder: there is no folder" in refused(recipe, tmp_path)


@pytest.mark.parametrize(("kind", "warns"), [("tmpfs", True), ("ext4", False)])
def test_a_file_system_in_memory_is_no_disk(
    recipe_of: RecipeOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, warns: bool
) -> None:
    class Mount:
        mountpoint, fstype = str(tmp_path), kind

    monkeypatch.setattr(room.psutil, "disk_partitions", lambda all: [Mount])
    (tmp_path / "deep").mkdir()
    warning = no_disk(recipe_of("memory.offload_optimizer=disk"), tmp_path / "deep")
    assert (warning is not None) == warns
    assert warning is None or f"{tmp_path / 'deep'}, where memory is offloaded to, is no disk but memory (tmpfs)" in warning
    assert no_disk(recipe_of("memory.offload_optimizer=host"), tmp_path) is None

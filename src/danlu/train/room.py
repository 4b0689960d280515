"""Whether what a recipe offloads has a place to go, before any process starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil

from danlu.errors import UserError
from danlu.files import why
from danlu.model.counts import state_bytes
from danlu.model.shape import ModelShape
from danlu.recipe import Recipe
from danlu.watch import probes
from danlu.watch.format import bytes_text

DISK = "disk"
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems that are no disk."""


def check_room(recipe: Recipe, shape: ModelShape, run: Path, machines: int = 1) -> None:
    """UserError: too little free memory or disk for what this machine's part of the processes offloads, or no such folder."""
    memory, sizes = recipe.memory, state_bytes(shape)
    moments = sizes.optimizer * (recipe.parallel.data if recipe.parallel.zero_stage == 0 else 1)
    wanted = {"host": 0, "disk": 0}
    for name, place, size in (
        ("offload_optimizer", memory.offload_optimizer, moments),
        ("offload_parameters", memory.offload_parameters, sizes.weights),
    ):
        if place != "none":
            wanted[place] += -(-size // machines)
            fits, free = _fits(place, wanted[place], recipe, run)
            if not fits:
                raise UserError(
                    f"memory.{name}: {place} needs {bytes_text(wanted[place])}, and {free}; {_way_out(recipe, place)}"
                )


def _fits(place: str, size: int, recipe: Recipe, run: Path) -> tuple[bool, str]:
    if place == "host":
        # In a CPU run the setting does nothing, and what is told of it is that.
        free = probes.available_memory_bytes()
        return recipe.train.device == "cpu" or size <= free, f"{bytes_text(free)} of memory are free"
    check_folder(recipe)
    folder = _folder(recipe, run)
    free = probes.disk_free_bytes(folder)
    return size <= free, f"{bytes_text(free)} are free on the disk of {folder}"


def check_folder(recipe: Recipe) -> None:
    """UserError: what is offloaded to disk has a folder of its own, which is not there or cannot be written."""
    if not recipe.memory.offload_folder or DISK not in (recipe.memory.offload_optimizer, recipe.memory.offload_parameters):
        return
    folder = Path(recipe.memory.offload_folder).expanduser()
    if not folder.is_dir():
        raise UserError(f"memory.offload_folder: there is no folder {folder}; make it, or name one on a fast local disk")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"memory.offload_folder: {folder} cannot be written: {why(error)}; name another one") from None


def no_disk(recipe: Recipe, run: Path) -> str | None:
    """A warning where what is offloaded to disk would lie in memory all the same."""
    if DISK not in (recipe.memory.offload_optimizer, recipe.memory.offload_parameters):
        return None
    kind = _file_system(folder := _folder(recipe, run))
    way_out = "name a folder on a local disk in memory.offload_folder"
    return f"{folder}, where memory is offloaded to, is no disk but memory ({kind}); {way_out}" if kind in IN_MEMORY else None


def _folder(recipe: Recipe, run: Path) -> Path:
    return Path(recipe.memory.offload_folder).expanduser() if recipe.memory.offload_folder else run


def _file_system(folder: Path) -> str:
    """The kind of file system that a folder is on, such as ext4."""
    place = folder.resolve()
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    return next((mounts[each] for each in (place, *place.parents) if each in mounts), "")


def _way_out(recipe: Recipe, place: str) -> str:
    ways = ["make room"]
    if place == "disk":
        ways.append("name another disk in memory.offload_folder")
    else:
        ways.append("offload to disk")
    if recipe.parallel.data > 1 and recipe.parallel.zero_stage == 0:
        ways.append(f"give parallel.zero_stage 1, which needs 1/{recipe.parallel.data} of it")
    return ", or ".join([*ways, "give none"])

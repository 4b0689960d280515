from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.data import stream as stream_module
from danlu.data.shards import ShardWriter, token_dtype
from danlu.data.stream import TokenStream
from danlu.errors import UserError


def write(folder: Path, documents: list[list[int]], shard_tokens: int, dtype: str = "<u2") -> TokenStream:
    folder.mkdir(parents=True, exist_ok=True)
    writer = ShardWriter(folder, "train", np.dtype(dtype), shard_tokens)
    for number, document in enumerate(documents):
        writer.add(np.array(document, np.uint32), number)
    return TokenStream(folder, np.dtype(dtype), writer.close())


def test_the_smallest_type_that_holds_every_id() -> None:
    assert [token_dtype(size).str for size in (1, 65536, 65537, 151_936)] == ["<u2", "<u2", "<u4", "<u4"]


def test_files_are_flat_and_little_endian(tmp_path: Path) -> None:
    made = write(tmp_path, [[1, 2, 3], [258], [70000]], 4, "<u4")
    assert sorted(os.listdir(tmp_path)) == [
        "train-00000.starts",
        "train-00000.tokens",
        "train-00001.starts",
        "train-00001.tokens",
    ]
    assert (tmp_path / "train-00000.tokens").read_bytes() == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0, 0])
    assert (tmp_path / "train-00000.starts").read_bytes() == bytes(8) + bytes([3]) + bytes(7)
    assert (tmp_path / "train-00001.tokens").read_bytes() == (70000).to_bytes(4, "little")
    assert (made.tokens, made.documents, made.text_bytes) == (5, 3, 0 + 1 + 2)


@given(
    documents=st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=9), min_size=1, max_size=12),
    shard_tokens=st.integers(1, 30),
    data=st.data(),
)
def test_windows_and_starts_agree_with_plain_lists(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], shard_tokens: int, data: Any
) -> None:
    made = write(tmp_path_factory.mktemp("s"), documents, shard_tokens)
    flat = [token for document in documents for token in document]
    starts = np.cumsum([0, *map(len, documents)])[:-1].tolist()
    assert made.tokens == len(flat)
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    window = made.window(start, stop - start)
    assert window.dtype == np.uint16
    assert window.tolist() == flat[start:stop]
    found = made.document_starts(start, stop)
    assert found.dtype == np.int64
    assert found.tolist() == [position for position in starts if start <= position < stop]


def test_a_window_is_a_copy_and_ends_at_the_stream(tmp_path: Path) -> None:
    made = write(tmp_path, [[1, 2, 3]], 10)
    made.window(0, 3)[:] = 0
    assert made.window(0, 3).tolist() == [1, 2, 3]
    for start, length in [(0, 4), (-1, 2), (4, 0), (2, -1)]:
        with pytest.raises(IndexError):
            made.window(start, length)
    assert made.window(3, 0).tolist() == []


def test_an_empty_stream(tmp_path: Path) -> None:
    made = write(tmp_path, [], 10)
    assert (made.tokens, made.documents) == (0, 0)
    assert made.window(0, 0).tolist() == made.document_starts(0, 0).tolist() == []


def test_pickling_and_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "OPEN_SHARDS", 2)
    monkeypatch.setattr(stream_module, "SMALL", 0)
    monkeypatch.setattr(stream_module, "RELEASE_EVERY", 3)
    made = write(tmp_path, [[number] for number in range(50)], 1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert made.window(0, 50).tolist() == list(range(50))
    assert len(os.listdir("/proc/self/fd")) <= before + 6
    again = pickle.loads(pickle.dumps(made))
    assert again.window(7, 3).tolist() == [7, 8, 9]
    assert len(pickle.dumps(made)) == len(pickle.dumps(again)), "no tokens travel"


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    made = write(tmp_path, [[1], [2]], 1)
    os.remove(tmp_path / "train-00001.tokens")
    assert made.window(0, 1).tolist() == [1]
    with pytest.raises(UserError, match=r"train-00001\.tokens: cannot be read: No such file"):
        made.window(1, 1)


SYNTHETIC = """
import os, random, sys, time
from pathlib import Path
import numpy as np
from danlu.data.batches import TrainingBatches
from danlu.data.stream import TokenStream

folder, shards, size = Path(sys.argv[1]), 800, 125_000_000
lengths = np.random.default_rng(0).integers(200, 1800, 125_000)
starts = np.concatenate([[0], np.cumsum(lengths)])
starts = starts[starts < size].astype("<i8")
starts.tofile(folder / "starts")
for number in range(shards):
    with open(folder / f"train-{number:05d}.tokens", "wb") as file:
        os.truncate(file.fileno(), 2 * size)
    os.link(folder / "starts", folder / f"train-{number:05d}.starts")
shard = {"tokens": size, "documents": len(starts), "text_bytes": 4 * size}
split = {
    "tokens": shards * size, "documents": shards * len(starts), "text_bytes": 4 * shards * size,
    "shards": [{"name": f"train-{number:05d}", **shard} for number in range(shards)],
}
stream = TokenStream(folder, np.dtype("<u2"), split)
assert stream.tokens == 100_000_000_000
batches = TrainingBatches(stream, sequence_length=512, global_batch=32, micro_batch=32, document_mask=True, seed=0)

def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) / 1024

before, peak = resident(), 0.0
choice = random.Random(0)
for step in range(400):
    batch = batches[choice.randrange(batches.steps_per_epoch)]
    assert batch["inputs"].shape == (1, 32, 512)
    at = choice.randrange(stream.tokens - 2000)
    found = stream.document_starts(at, at + 2000) % size
    assert len(found) and (starts[np.searchsorted(starts, found)] == found).all()
    if step % 10 == 0:
        peak = max(peak, resident())
print(before, peak)
"""


def test_a_hundred_billion_tokens_in_little_memory(tmp_path: Path) -> None:
    """800 sparse shards, 12,800 windows and their documents out of them, under a common limit on open files."""
    command = ["bash", "-c", 'ulimit -n 256 && exec "$@"', "-", sys.executable, "-c", SYNTHETIC, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    before, peak = map(float, result.stdout.split())
    assert peak - before < 100, "MiB; the shards have 190,735"

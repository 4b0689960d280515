from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from danlu.data import prepared as module
from danlu.data import tokenizer
from danlu.data.prepared import Prepared
from danlu.errors import UserError


@pytest.fixture
def folder(prepared: Prepared, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared.folder, tmp_path / "data"))


def test_what_is_in_it(prepared: Prepared) -> None:
    made = Prepared.open(prepared.folder, verify=True)
    loaded = tokenizer.load(made.tokenizer_path)
    assert (made.vocab_size, made.begin_id, made.end_id) == (loaded.vocab_size, loaded.begin_id, loaded.end_id)
    assert made.index["tokenizer"]["sha256"] == loaded.fingerprint
    assert made.train.tokens == sum(shard["tokens"] for shard in made.index["splits"]["train"]["shards"])
    assert len(made.index["splits"]["train"]["shards"]) >= 3
    assert made.train.documents + made.validation.documents == 300
    for split in made.index["splits"].values():
        for shard in split["shards"]:
            for kind, size in (("tokens", 2 * shard["tokens"]), ("starts", 8 * shard["documents"])):
                data = (made.folder / f"{shard['name']}.{kind}").read_bytes()
                assert len(data) == size
                assert hashlib.sha256(data).hexdigest() == shard[f"{kind}_file"]["sha256"]


@pytest.mark.parametrize("name", ["train-00001.tokens", "train-00000.starts", "validation-00000.tokens"])
def test_a_truncated_shard(folder: Path, name: str) -> None:
    size = (folder / name).stat().st_size
    with (folder / name).open("rb+") as file:
        file.truncate(size - 2)
    with pytest.raises(UserError) as caught:
        Prepared.open(folder, verify=False)
    assert str(caught.value) == (
        f"{folder / name}: {size - 2:,} bytes, but {size:,} were written; delete the folder and run `danlu prepare` again"
    )


def test_an_altered_shard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "train-00001.tokens"
    data = np.fromfile(path, "<u2")
    data[7] ^= 1
    data.tofile(path)
    with pytest.raises(
        UserError, match=r"train-00001\.tokens: altered since it was written \(SHA-256 .* run `danlu prepare` again"
    ):
        Prepared.open(folder)
    assert Prepared.open(folder, verify=False).train.tokens > 0
    monkeypatch.setattr(module, "VERIFY_BELOW", 100)
    Prepared.open(folder)  # too large to be hashed at every opening
    with pytest.raises(UserError, match="altered"):
        Prepared.open(folder, verify=True)


def test_missing_pieces(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prepared data here .*`danlu prepare` makes it"):
        Prepared.open(tmp_path / "absent")
    (folder / "train-00002.starts").unlink()
    with pytest.raises(UserError, match=r"train-00002\.starts: cannot be read: No such file"):
        Prepared.open(folder)


def test_another_tokenizer_in_its_place(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("炉", "火") + " ")
    with pytest.raises(UserError, match=r"tokenizer\.json: altered"):
        Prepared.open(folder)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format": 99}', '{"format": 1}', '{"format": 1, "splits": {"train": {"shards": 3}}}']
)
def test_a_damaged_index(folder: Path, content: str) -> None:
    (folder / "index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json: .* run `danlu prepare` again") as caught:
        Prepared.open(folder)
    assert "\n" not in str(caught.value)


def test_the_index_is_plain_json(prepared: Prepared) -> None:
    index = json.loads((prepared.folder / "index.json").read_text(encoding="ascii"))
    assert index == prepared.index
    assert {
        "format",
        "samples",
        "dtype",
        "tokenizer",
        "splits",
        "report",
        "curation",
        "noise",
        "sources",
        "data",
    } == index.keys()

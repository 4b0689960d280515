"""Near-duplicate removal with what people use, as its documentation has it: 112 permutations, 14 bands of 8, five words.

Each reads the JSON lines of a folder and writes those that it keeps. Run with the Python of the peer's own environment:
python dedup.py (datatrove|text-dedup|rensa|gaoya|datasketch) CORPUS OUT
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PERMUTATIONS, BANDS, ROWS, WORDS, THRESHOLD, PROCESSES = 112, 14, 8, 5, 0.8, 2


def lines(corpus: Path) -> Iterator[tuple[bytes, str]]:
    for path in sorted(corpus.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                yield line, json.loads(line)["text"]


def shingles(text: str) -> list[str]:
    words = text.lower().split()
    return [" ".join(words[i : i + WORDS]) for i in range(max(1, len(words) - WORDS + 1))]


def datatrove(corpus: Path, out: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    config = MinhashConfig(n_grams=WORDS, num_buckets=BANDS, hashes_per_bucket=ROWS)
    read = JsonlReader(str(corpus), glob_pattern="*.jsonl")
    files = len(list(corpus.glob("*.jsonl")))
    signatures, buckets, removed = (str(out / name) for name in ("signatures", "buckets", "removed"))
    steps = [
        ([read, MinhashDedupSignature(signatures, config=config)], files),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], BANDS),
        ([MinhashDedupCluster(buckets, removed, config=config)], 1),
        ([read, MinhashDedupFilter(removed), JsonlWriter(str(out / "kept"), compression=None)], files),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        logs = str(out / "logs" / str(number))
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=min(tasks, PROCESSES), logging_dir=logs).run()


def text_dedup(corpus: Path, out: Path) -> None:
    files = [str(path) for path in sorted(corpus.glob("*.jsonl"))]
    options = {
        "path": "json", "data_files": str(corpus / "*.jsonl"), "split": "train", "column": "text", "batch_size": 10_000,
        "num_perm": PERMUTATIONS, "b": BANDS, "r": ROWS, "ngram": WORDS, "threshold": THRESHOLD, "num_proc": PROCESSES,
        "cache_dir": str(out / "cache"), "output": str(out / "kept"),
    }  # fmt: skip
    assert files
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "text_dedup.minhash", *arguments], check=True)


def rensa(corpus: Path, out: Path) -> None:
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS, num_bands=BANDS)
    with (out / "kept.jsonl").open("wb") as kept:
        seen, batch = 0, []

        def flush() -> None:
            nonlocal seen
            matrix = RMinHash.digest_matrix_from_token_sets([shingles(text) for _, text in batch], PERMUTATIONS, 42)
            flags = index.insert_matrix_and_query_duplicate_flags(matrix, seen)
            kept.writelines(line for (line, _), copy in zip(batch, flags, strict=True) if not copy)
            seen += len(batch)
            batch.clear()

        for pair in lines(corpus):
            batch.append(pair)
            if len(batch) == 1000:
                flush()
        if batch:
            flush()


def gaoya(corpus: Path, out: Path) -> None:
    from gaoya.minhash import MinHashStringIndex

    index = MinHashStringIndex(
        hash_size=32, jaccard_threshold=THRESHOLD, num_bands=BANDS, band_size=ROWS, analyzer="word", lowercase=True,
        ngram_range=(WORDS, WORDS), id_container="smallvec",
    )  # fmt: skip
    with (out / "kept.jsonl").open("wb") as kept:
        for number, (line, text) in enumerate(lines(corpus)):
            if not index.query(text):
                kept.write(line)
                index.insert_document(number, text)


def gaoya_bulk(corpus: Path, out: Path) -> None:
    from gaoya.minhash import MinHashStringIndex

    index = MinHashStringIndex(
        hash_size=32, jaccard_threshold=THRESHOLD, num_bands=BANDS, band_size=ROWS, analyzer="word", lowercase=True,
        ngram_range=(WORDS, WORDS), id_container="smallvec",
    )  # fmt: skip
    pairs = list(lines(corpus))
    texts = [text for _, text in pairs]
    index.par_bulk_insert_docs(list(range(len(texts))), texts)
    with (out / "kept.jsonl").open("wb") as kept:
        for start in range(0, len(texts), 4096):
            for offset, found in enumerate(index.par_bulk_query(texts[start : start + 4096])):
                if min(found, default=start + offset) >= start + offset:
                    kept.write(pairs[start + offset][0])


def datasketch(corpus: Path, out: Path) -> None:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=PERMUTATIONS, params=(BANDS, ROWS))
    with (out / "kept.jsonl").open("wb") as kept:
        for number, (line, text) in enumerate(lines(corpus)):
            sketch = MinHash(num_perm=PERMUTATIONS)
            sketch.update_batch([shingle.encode() for shingle in set(shingles(text))])
            if not index.query(sketch):
                kept.write(line)
            index.insert(number, sketch)


PEERS = {
    "datatrove": datatrove,
    "text-dedup": text_dedup,
    "rensa": rensa,
    "gaoya": gaoya,
    "gaoya-bulk": gaoya_bulk,
    "datasketch": datasketch,
}

if __name__ == "__main__":
    name, corpus, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    out.mkdir(parents=True)
    PEERS[name](corpus, out)

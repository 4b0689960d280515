"""The whole way from JSON lines to tokens with datatrove: the filters of FineWeb in their order, MinHash, and its tokeniser.

Without its language filter and its list of bad words, which are downloads. Run with the Python of the peer's own environment:
python pipeline.py CORPUS OUT TOKENIZER
"""

from __future__ import annotations

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers.jsonl import JsonlWriter
from dedup import BANDS, PROCESSES, ROWS, WORDS


def main(corpus: Path, out: Path, tokenizer: str) -> None:
    config = MinhashConfig(n_grams=WORDS, num_buckets=BANDS, hashes_per_bucket=ROWS)
    files = len(list(corpus.glob("*.jsonl")))
    filtered, signatures, buckets, removed, tokens = (
        str(out / name) for name in ("filtered", "signatures", "buckets", "removed", "tokens")
    )
    filters = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]
    read, again = JsonlReader(str(corpus), glob_pattern="*.jsonl"), JsonlReader(filtered, glob_pattern="*.jsonl")
    steps = [
        ([read, *filters, JsonlWriter(filtered, compression=None)], files),
        ([again, MinhashDedupSignature(signatures, config=config)], files),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], BANDS),
        ([MinhashDedupCluster(buckets, removed, config=config)], 1),
        ([again, MinhashDedupFilter(removed), DocumentTokenizer(tokens, tokenizer, shuffle_documents=False)], files),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        logs = str(out / "logs" / str(number))
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=min(tasks, PROCESSES), logging_dir=logs).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

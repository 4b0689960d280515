"""Near-duplicate removal and tokenising of danlu beside what people use, on one corpus, in alternating runs.

Every contender removes near-duplicates from the same files of JSON lines with 112 permutations (14 bands of 8), shingles of
five and a threshold of 0.8, and writes what it keeps; a process of its own does it, reading, writing, start and imports
counted. CPU-seconds are those of all its processes: what it leaves behind is adopted and waited for. danlu's compiled code is
in its cache, as after a first run. Each peer runs between two runs of danlu: its ratio is its CPU over their mean, the median of
some rounds.

Recall, by true Jaccard of the planted pairs, is the share of which not both were kept. Precision is the share of left-out
documents that were planted together with the kept one that is named for them, or whose true Jaccard with it is 0.6 or more
(no more than 0.2 below the threshold). Peak memory is the largest sum of the resident
sizes of danlu's processes, shared pages counted in each.

Tokenising: CPU-seconds of `danlu.data.encode` with shards written, beside `tokenizers`' encode_batch_fast in the same loop,
on the same texts and tokenizer (16,384 tokens, byte-level BPE); the ids are compared.

The whole way, from raw lines to packed tokens: `danlu prepare` with language, quality, toxicity and near-duplicates, beside
datatrove's filters of Gopher, C4 and FineWeb (without language and bad words, which it downloads), MinHash and tokeniser, by
CPU-seconds. A document that an early filter turns down costs no later stage anything, so what each kept is printed: the rules of
datatrove are for English alone.

Usage: python benchmarks/curate.py --peers FOLDER [--documents 161000] [--rounds 3] [--only rensa,gaoya]
       [--parts dedup,tokenise,pipeline] [--corpus FOLDER] [--json FILE]
FOLDER holds the environments that `make peers` makes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = {"datatrove": "datatrove", "text-dedup": "text-dedup"}
"""Of a contender below `make peers`' folder; the others share `libs`."""
SLOW = ("datatrove", "text-dedup")
"""Those that take minutes."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def measured(command: list[str], log: Path) -> dict[str, float]:
    """Run a command in a process of its own that adopts all its descendants; CPU-seconds, seconds and peak bytes.

    The peak is that of all processes together, a page that several share counted once (PSS).
    """
    runner = [sys.executable, __file__, "--measure", str(log), *command]
    done = subprocess.run(runner, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}\n{log.read_text(errors='replace')[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(log: str, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    began = time.monotonic()
    peak = 0
    with open(log, "wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out)
    own = psutil.Process()
    while child.poll() is None:
        peak = max(peak, sum(_resident(one) for one in own.children(recursive=True)))
        time.sleep(0.05)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "seconds": time.monotonic() - began, "peak": peak}))
    sys.exit(child.returncode)


def _resident(process: psutil.Process) -> int:
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        return 1024 * int(rollup.split("\nPss:")[1].split()[0])
    except (OSError, IndexError):  # it has ended
        return 0


def contender(name: str, peers: Path, corpus: Path, out: Path) -> list[str]:
    if name == "danlu":
        return [sys.executable, "-m", "danlu", "data", "dedup", str(corpus / "*.jsonl"), "--output", str(out)]
    python = peers / ENVIRONMENTS.get(name, "libs") / "bin" / "python"
    return [str(python), str(HERE / "peers" / "dedup.py"), name, str(corpus), str(out)]


def quality(corpus: Path, out: Path) -> dict[str, float]:
    """Recall by true Jaccard and precision of danlu's result."""
    sys.path.insert(0, str(HERE))
    from corpus import jaccard

    truth = json.loads((corpus / "truth.json").read_text(encoding="utf-8"))
    left: dict[int, int] = {}
    texts: dict[int, str] = {}
    lines: dict[str, int] = {}
    for path in sorted((out / "kept").glob("*.jsonl")):
        for number, line in enumerate(path.open("rb"), 1):
            record = json.loads(line)
            texts[record["id"]] = record["text"]
            lines[f"kept/{path.name}:{number}"] = record["id"]
    for path in sorted((out / "rejected").glob("*.jsonl")):
        for line in path.open("rb"):
            why = json.loads(line)
            one = why["document"]["id"]
            left[one] = lines[why["kept"]]
            texts[one] = why["document"]["text"]
    assert len(texts) == truth["documents"]
    found = {}
    for floor, label in ((0.85, "085"), (0.8, "08")):
        for language in ("", "en", "code", "zh"):
            pairs = [p for p in truth["pairs"] if p[4] >= floor and language in ("", p[3])]
            found_pairs = sum(a in left or b in left for a, b, *_ in pairs)
            found[f"recall_{label}" + (f"_{language}" if language else "")] = found_pairs / max(1, len(pairs))
    family: dict[int, int] = {}
    for first, copy, *_ in truth["pairs"]:
        family[first] = family[copy] = first

    def right(one: int, kept: int) -> bool:
        return family.get(one, one) == family.get(kept, kept) or jaccard(texts[one], texts[kept]) >= 0.6

    found["precision"] = sum(right(*pair) for pair in left.items()) / max(1, len(left))
    return found


def tokenising(corpus: Path, folder: Path, rounds: int, texts: int) -> dict[str, Any]:
    """CPU of encoding and packing with danlu's encoder and with `tokenizers` alone, in turn, in processes of their own."""
    import numpy as np

    from danlu.data.tokenizer import BEGIN, END, save, train

    sample = _texts(corpus, texts)
    save(folder, train(sample[: texts // 4], 16384), BEGIN, END)
    ratios, speeds = [], []
    for _ in range(rounds):
        figures = {}
        for which in ("danlu", "tokenizers"):
            command = [sys.executable, __file__, "--tokenise", which, str(corpus), str(folder), str(texts)]
            figures[which] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ratios.append(figures["tokenizers"]["cpu"] / figures["danlu"]["cpu"])
        speeds.append(figures["danlu"]["megabytes"] / figures["danlu"]["cpu"])
    ids = [[np.fromfile(path, "<u2") for path in sorted((folder / which).glob("*.tokens"))] for which in ("danlu", "tokenizers")]
    assert all(np.array_equal(a, b) for a, b in zip(*ids, strict=True)), "the ids differ"
    return {"tokenise_ratio": statistics.median(ratios), "tokenise_mb_per_cpu_second": statistics.median(speeds)}


def _texts(corpus: Path, count: int) -> list[str]:
    found: list[str] = []
    for path in sorted(corpus.glob("*.jsonl")):
        for line in path.open("rb"):
            if len(found) == count:
                return found
            found.append(json.loads(line)["text"])
    return found


def tokenise(which: str, corpus: Path, folder: Path, count: int) -> None:
    import numpy as np

    from danlu.data.encode import Item, encoded
    from danlu.data.read import Document
    from danlu.data.shards import ShardWriter
    from danlu.data.tokenizer import load

    tokenizer = load(folder)
    texts = _texts(corpus, count)
    items = [Item(Document(text, 0, ""), "train", len(text.encode())) for text in texts]
    shutil.rmtree(folder / which, ignore_errors=True)
    (folder / which).mkdir()
    if which == "tokenizers":
        tokenizer.__dict__["_fast"] = None  # the encoder of a tokenizer that the faster library cannot represent
    began = resource.getrusage(resource.RUSAGE_SELF)
    writer = ShardWriter(folder / which, "train", np.dtype("<u2"), 1 << 27)
    for item, ids in encoded(items, tokenizer):
        writer.add(ids, item.text_bytes)
    writer.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
    print(json.dumps({"cpu": cpu, "megabytes": sum(item.text_bytes for item in items) / 1e6}))


RECIPE = """
name: danlu
model: {{preset: llama-5m}}
data:
  sources: [{{path: "{corpus}/*.jsonl"}}]
  tokenizer: {{path: "{tokenizer}"}}
  curate: {{language: default, quality: default, toxicity: default, dedup: {{threshold: 0.8}}}}
"""


def pipeline(corpus: Path, place: Path, peers: Path, rounds: int) -> dict[str, float]:
    """CPU of the whole way with danlu and with datatrove, in turn, and the documents that each keeps."""
    from danlu.data.tokenizer import BEGIN, END, save, train

    tokenizer = place / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    save(tokenizer, train(_texts(corpus, 8000), 16384), BEGIN, END)
    recipe, runs, out = place / "recipe.yaml", place / "runs", place / "datatrove-pipeline"
    recipe.write_text(RECIPE.format(corpus=corpus, tokenizer=tokenizer), encoding="utf-8")
    python = peers / "datatrove" / "bin" / "python"
    commands = {
        "danlu": [sys.executable, "-m", "danlu", "prepare", str(recipe), "--runs", str(runs)],
        "datatrove": [str(python), str(HERE / "peers" / "pipeline.py"), *map(str, (corpus, out, tokenizer / "tokenizer.json"))],
    }
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, command in commands.items():
            shutil.rmtree(runs, ignore_errors=True)
            shutil.rmtree(out, ignore_errors=True)
            found[name].append(measured(command, place / "log"))
            kept = (runs / "danlu" / "curated" / "kept", out / "filtered")[name == "datatrove"]
            found[name][-1]["kept"] = sum(path.read_bytes().count(b"\n") for path in kept.glob("*.jsonl"))
            print(f"the whole way, {name}: {found[name][-1]}", flush=True)
    ours, theirs = found["danlu"], found["datatrove"]
    return {
        "pipeline_ratio_datatrove": statistics.median(b["cpu"] / a["cpu"] for a, b in zip(ours, theirs, strict=True)),
        "pipeline_cpu_seconds": statistics.median(one["cpu"] for one in ours),
        "pipeline_kept": ours[0]["kept"],
        "pipeline_kept_datatrove": theirs[0]["kept"],
        "pipeline_peak_memory_gib": max(one["peak"] for one in ours) / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=161_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-rounds", type=int, default=1, help="Rounds of datatrove and text-dedup.")
    parser.add_argument("--only", default="rensa,gaoya,text-dedup,datatrove")
    parser.add_argument("--parts", default="dedup,tokenise,pipeline", help="What is measured.")
    parser.add_argument("--corpus", type=Path, help="A corpus that is there already.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="curate-") as name:
        place = Path(name)
        corpus = options.corpus or place / "corpus"
        if options.corpus is None:
            made = [str(options.peers / "libs" / "bin" / "python"), str(HERE / "corpus.py"), str(corpus)]
            subprocess.run([*made, "--documents", str(options.documents)], check=True)
        figures: dict[str, Any] = {}
        if "dedup" in options.parts:
            figures |= _dedup(options, corpus, place)
            figures |= quality(corpus, place / "danlu")
        if "tokenise" in options.parts:
            figures |= tokenising(corpus, place, options.rounds, min(options.documents, 32_000))
        if "pipeline" in options.parts:
            figures |= pipeline(corpus, place, options.peers, options.slow_rounds)
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _dedup(options: argparse.Namespace, corpus: Path, place: Path) -> dict[str, float]:
    names = [name for name in options.only.split(",") if name]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = defaultdict(list)
    peak = 0.0

    def run(name: str) -> float:
        nonlocal peak
        shutil.rmtree(place / name, ignore_errors=True)
        used = measured(contender(name, options.peers, corpus, place / name), place / "log")
        print(f"{name}: {used['cpu']:.1f} CPU-s, {used['seconds']:.1f} s, {used['peak'] / 2**30:.2f} GiB", flush=True)
        cpu[name].append(used["cpu"])
        if name == "danlu":
            peak = max(peak, used["peak"])
        return used["cpu"]

    run("danlu")  # compiles on a new machine
    cpu.clear()
    for turn in range(options.rounds):
        for name in names:
            if name in SLOW and turn >= options.slow_rounds:
                continue
            before, theirs, after = run("danlu"), run(name), run("danlu")
            ratios[name].append(2 * theirs / (before + after))
    figures = {f"dedup_cpu_ratio_{name.replace('-', '_')}": statistics.median(found) for name, found in ratios.items()}
    figures |= {f"dedup_cpu_seconds_{name.replace('-', '_')}": statistics.median(found) for name, found in cpu.items()}
    facts = json.loads((corpus / "truth.json").read_text(encoding="utf-8"))
    return figures | {"documents": facts["documents"], "bytes": facts["bytes"], "peak_memory_gib": peak / 2**30}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], sys.argv[3:])
    elif sys.argv[1:2] == ["--tokenise"]:
        tokenise(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
    else:
        main()

"""Raw text to a prepared folder: list, read, train or load a tokenizer, encode, write."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from danlu.data import read, reuse, tokenizer
from danlu.data.aside import building
from danlu.data.chat import template
from danlu.data.chat.pairs import pair
from danlu.data.chat.read import conversations
from danlu.data.chat.samples import Sampler
from danlu.data.curate.contamination.held_out import LISTED, HeldOut, held_out
from danlu.data.curate.final import NOISE
from danlu.data.curate.job import curate, settings_of, summary
from danlu.data.curate.noise import Count
from danlu.data.curate.page import write_page
from danlu.data.encode import Item, encoded, framed, sampled
from danlu.data.ledger import Ledger, one_line
from danlu.data.prepared import FORMAT, INDEX, Prepared, is_prepared
from danlu.data.progress import Progress, amount
from danlu.data.sample import dense_bytes, training_sample
from danlu.data.shards import ShardWriter, token_dtype
from danlu.data.sources import Listing, SourceFile, resolve
from danlu.data.split import place
from danlu.data.tokenizer import Tokenizer
from danlu.errors import UserError
from danlu.files import locked
from danlu.plural import many
from danlu.recipe.data_sections import DataSection
from danlu.recipe.sections import Recipe

Report = Callable[[str], None]
TRAIN, VALIDATION = "train", "validation"
BUSY = "another process is preparing this folder; wait for it, or choose another folder"
CURATED = "curated"
"""Beside the prepared folder: the documents that curation kept, and why it did not keep the others."""
ROUND_TRIPS = 32
"""Documents by which a loaded tokenizer is tried for loss."""


def prepare(recipe: Recipe, folder: Path, report: Report) -> Prepared:
    """Make the data folder of a recipe, or reuse it when the same data settings made it.

    It is written to `<folder>.partial` and renamed when complete. `report` gets one line at a time.

    Raises:
        UserError: the sources, the tokenizer or the settings are at fault, or the folder is of another recipe.
        DanluError: the disk is full.
    """
    folder = Path(folder)
    if is_prepared(folder):
        return reuse.reuse(recipe, folder, report)
    with locked(folder, BUSY):
        if is_prepared(folder):  # finished by another process since
            return reuse.reuse(recipe, folder, report)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: exists and is no prepared data; choose another folder, or delete it")
        with building(folder, report) as partial:
            _build(recipe, partial, report)
    return Prepared.open(folder, verify=False)


def _build(recipe: Recipe, folder: Path, report: Report) -> None:
    began = time.monotonic()
    data = recipe.data
    settings = data.tokenizer.training
    if settings is not None:
        reuse.check_vocabulary(settings.vocab_size, recipe, "data.tokenizer.train.vocab_size")
    listing = resolve(data.sources)
    report(f"sources: {many(len(listing.files), 'file')}, {amount(listing.size)}" + _ignored(listing))
    for note in listing.notes:
        report(f"note: {note}")
    curation = chosen = None
    if data.curate is not None:
        made_of: list[tuple[Tokenizer, str]] = []

        def counter(files: list[SourceFile]) -> Count:
            """Counts tokens by the tokenizer that is trained on what is kept for what it is."""
            made_of.append(_tokenizer(data, replace(listing, files=files), folder, report))
            return lambda texts: [len(ids) for ids in framed(texts, made_of[0][0])]

        done = curate(listing, folder.with_name(CURATED), settings_of(data), report, counter)
        report(summary(done))
        curation = done.report
        chosen = made_of[0] if made_of else _tokenizer(data, replace(listing, files=done.clean_files()), folder, report)
        listing = replace(listing, files=done.files(), unreadable=[])
    made, origin = chosen or _tokenizer(data, listing, folder, report)
    reuse.check_vocabulary(made.vocab_size, recipe, "the tokenizer's vocabulary")
    ledger = Ledger(data.bad_line_limit, ignored=listing.ignored)
    sampler = _sampler(recipe, made)
    compared = held_out(data, listing.files, folder)
    splits, tally = _write(data, listing, made, ledger, folder, report, compared, sampler)
    if compared is not None:
        report(f"decontaminated: {many(compared.repeated, 'training document')} left out that repeat a held-out one ({LISTED})")
    index = {
        "format": FORMAT,
        "dtype": token_dtype(made.vocab_size).str,
        "tokenizer": {
            "sha256": made.fingerprint,
            "vocab_size": made.vocab_size,
            "begin": made.begin,
            "end": made.end,
            "begin_id": made.begin_id,
            "end_id": made.end_id,
            "origin": origin,
        },
        "splits": splits,
        "report": ledger.as_dict()
        | {"left_out_by_weight": tally["left out"], "repeats_held_out": compared.repeated if compared else 0},
        "curation": curation,
        "noise": _noise(data, splits, tally["noise tokens"]),
        "sources": listing.fingerprints,
        "samples": recipe.train.samples,
        "data": data.model_dump(mode="json"),
    }
    reuse.check_sizes(index, recipe)
    if curation is not None:
        parts = splits.values()
        rate = sum(part["text_bytes"] for part in parts) / sum(part["tokens"] for part in parts)
        index["bytes_a_token"] = round(rate, 4)
        write_page(folder.with_name(CURATED), curation, rate)
    (folder / INDEX).write_text(json.dumps(index, ensure_ascii=True, indent=1) + "\n", encoding="utf-8")
    _summary(index, ledger, report, time.monotonic() - began)


def _ignored(listing: Listing) -> str:
    if not listing.ignored:
        return ""
    return " (ignored: " + ", ".join(f"{count:,} {one_line(name)}" for name, count in listing.ignored.most_common(6)) + ")"


def _tokenizer(data: DataSection, listing: Listing, folder: Path, report: Report) -> tuple[Tokenizer, str]:
    """Train or load it, put it into the folder, and say where it came from."""
    settings = data.tokenizer.training
    if settings is None:
        assert data.tokenizer.path is not None
        file = tokenizer.tokenizer_file(data.tokenizer.path)
        loaded = tokenizer.load(file, data.tokenizer.begin, data.tokenizer.end)
        beside = tokenizer.settings_beside(file)
        if data.chat.template is not None:  # which is the model's from now on
            beside["chat_template"] = template.load(loaded, file, data.chat.template).source
        tokenizer.save(folder, file.read_bytes(), loaded.begin, loaded.end, beside)
        begin = loaded.begin or "nothing"
        report(f"tokenizer: {file}, {loaded.vocab_size:,} tokens, {begin} before and {loaded.end} after a document")
        return loaded, str(file)
    began = time.monotonic()
    sample = training_sample(listing.files, data.sources, settings.sample_bytes, data.validation_fraction)
    if not sample:
        _explain_nothing(data, listing)
    size, dense = sum(len(text.encode("utf-8")) for text in sample), sum(dense_bytes(text) for text in sample)
    share = f", {amount(dense)} of it Chinese or the like" if dense > size / 10 else ""
    report(f"tokenizer: training on {many(len(sample), 'document')}, {amount(size)}{share}")
    made = tokenizer.load(tokenizer.save(folder, tokenizer.train(sample, settings.vocab_size), tokenizer.BEGIN, tokenizer.END))
    fewer = "" if made.vocab_size == settings.vocab_size else f" (not {settings.vocab_size:,}: no more pairs to merge)"
    report(f"tokenizer: {made.vocab_size:,} tokens{fewer}, {time.monotonic() - began:.1f} s")
    return made, "trained"


def _explain_nothing(data: DataSection, listing: Listing) -> NoReturn:
    """Raise for sources in which there is nothing to train on, having read them through to say why."""
    ledger = Ledger(data.bad_line_limit)
    found = sum(1 for _ in read.documents(listing.files, ledger))
    if not found:
        raise _empty(ledger)
    raise UserError(
        f"data.validation_fraction {data.validation_fraction:g} holds out all of the {found:,} documents; lower it, or add more"
    )


def _sampler(recipe: Recipe, made: Tokenizer) -> Sampler | None:
    """What makes samples of conversations, where the recipe trains on these."""
    if recipe.train.samples == "text":
        return None
    path = recipe.data.tokenizer.path
    assert path is not None, "contradictions() saw to it"
    chat, longest = recipe.data.chat, recipe.data.sequence_length + 1
    loaded, everything = template.load(made, path, chat.template), chat.supervise == "all"
    if recipe.train.samples == "pairs":  # both answers go into one sample
        return Sampler(made, loaded, everything, longest // 2, pair)
    return Sampler(made, loaded, everything, longest)


def _empty(ledger: Ledger) -> UserError:
    first = f"; the first bad one: {ledger.examples[0]}" if ledger.examples else ""
    return UserError(
        f"data.sources: no text in {many(ledger.files, 'file')} ({ledger.empty:,} empty, {ledger.bad:,} bad records{first})"
    )


def _items(
    data: DataSection,
    listing: Listing,
    ledger: Ledger,
    tally: dict[str, float],
    compared: HeldOut | None,
    sampler: Sampler | None,
) -> Iterator[Item]:
    """Documents with their split, source after source, pass after pass."""
    for listed in listing.unreadable:
        ledger.skip(*listed)
    for passed in range(math.ceil(max(source.weight for source in data.sources))):
        files = [file for file in listing.files if data.sources[file.source].weight > passed]
        counted = ledger if passed == 0 else Ledger()
        for document in read.documents(files, counted) if sampler is None else conversations(files, counted, sampler):
            size = len(document.text.encode("utf-8"))
            where = place(document.text)
            if where.split < data.validation_fraction:
                if passed == 0:
                    yield Item(document, VALIDATION, size)
                continue
            if compared is not None and compared.repeats(document):
                continue
            tally["smallest"] = min(tally["smallest"], where.split)
            if where.weight < data.sources[document.source].weight - passed:
                yield Item(document, TRAIN, size)
            else:
                tally["left out"] += passed == 0


def _write(
    data: DataSection,
    listing: Listing,
    made: Tokenizer,
    ledger: Ledger,
    folder: Path,
    report: Report,
    compared: HeldOut | None,
    sampler: Sampler | None,
) -> tuple[dict[str, Any], dict[str, int]]:
    """Encode everything into shards; return the splits of the index, the documents left out by weight, and tokens of noise."""
    writers = {
        split: ShardWriter(folder, split, token_dtype(made.vocab_size), data.shard_tokens, sampler is not None)
        for split in (TRAIN, VALIDATION)
    }
    tally = {"smallest": 1.0, "left out": 0, "noise tokens": 0}
    noise = os.path.join(folder.with_name(CURATED), NOISE, "")
    progress = Progress(report, ledger, listing.size)
    changed = tried = 0
    items = _items(data, listing, ledger, tally, compared, sampler)
    for item, ids, supervised in encoded(items, made) if sampler is None else sampled(items):
        writers[item.split].add(ids, item.text_bytes, supervised)
        if item.document.place.startswith(noise):
            tally["noise tokens"] += len(ids)
        if data.tokenizer.path is not None and sampler is None and tried < ROUND_TRIPS:
            tried += 1
            changed += made.decode(ids[made.begin_id is not None : -1].tolist()) != item.document.text
        progress.show()
    if not ledger.documents:
        raise _empty(ledger)
    if changed:
        report(f"note: {changed} of the first {tried} documents do not come back unchanged from this tokenizer")
    splits = {split: writer.close() for split, writer in writers.items()}
    if data.validation_fraction > 0 and not splits[VALIDATION]["documents"]:
        raise _no_validation(data.validation_fraction, ledger.documents, tally["smallest"])
    return splits, {name: int(tally[name]) for name in ("left out", "noise tokens")}


def _no_validation(fraction: float, documents: int, smallest: float) -> UserError:
    if documents == 1:
        ways = "cut the text into several documents (such as one a line in a .jsonl file), or set it to 0"
    else:
        ways = f"raise it (above {smallest:.4f} one is held out), add documents, or set it to 0"
    return UserError(f"data.validation_fraction {fraction:g} holds out none of the {documents:,} documents; {ways}")


def _noise(data: DataSection, splits: dict[str, Any], tokens: int) -> dict[str, Any] | None:
    """The share of the written tokens that comes from what failed a soft rule."""
    if data.curate is None or not data.curate.noise_ratio:
        return None
    written = sum(split["tokens"] for split in splits.values())
    return {"target": data.curate.noise_ratio, "achieved": round(tokens / written, 6), "tokens": tokens}


def _summary(index: dict[str, Any], ledger: Ledger, report: Report, seconds: float) -> None:
    train, validation = index["splits"][TRAIN], index["splits"][VALIDATION]
    report(
        f"read: {many(ledger.files, 'file')}, {many(ledger.documents, 'document')}, {amount(ledger.text_bytes)} of text, "
        f"{ledger.empty:,} empty, {ledger.bad:,} bad records"
    )
    if ledger.cut:
        report(f"note: {many(ledger.cut, 'conversation')} cut at data.sequence_length, with supervised tokens left in each")
    for example in ledger.examples[:3]:
        report(f"bad: {example}")
    if noise := index["noise"]:
        report(f"noise: {noise['tokens']:,} tokens, {noise['achieved']:.2%} of all, {noise['target']:.2%} asked for")
    left_out = index["report"]["left_out_by_weight"]
    tokens, text = train["tokens"] + validation["tokens"], train["text_bytes"] + validation["text_bytes"]
    report(
        f"prepared: {train['tokens']:,} training tokens in {many(train['documents'], 'document')}, "
        f"{validation['tokens']:,} validation tokens in {validation['documents']:,}, "
        + (f"{left_out:,} documents left out by weight, " if left_out else "")
        + f"{text / tokens:.2f} bytes a token, {seconds:.1f} s"
    )

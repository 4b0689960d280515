"""Curation as a whole: shards through the first pass, copies found over all of them, shards through the last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from danlu import __version__
from danlu.data.arrays import Array
from danlu.data.curate.account import Fates, account
from danlu.data.curate.execute import Workers, each, settle, told
from danlu.data.curate.final import KEPT, LEFT_OUT, NOISE, PARAGRAPHS
from danlu.data.curate.finish import Finish
from danlu.data.curate.noise import Count, byte_sizes
from danlu.data.curate.page import write_page
from danlu.data.curate.paragraphs import Paragraphs, trim
from danlu.data.curate.shard import Shard, first_pass, shards
from danlu.data.curate.spool import Spool
from danlu.data.curate.stage import Stage
from danlu.data.curate.stages import stages_of
from danlu.data.curate.tally import Tally
from danlu.data.dedup.groups import Groups, Sketches, find
from danlu.data.dedup.plan import Plan, plan_of
from danlu.data.dedup.sketch import ShardSketch, Sketcher, back_to_back
from danlu.data.ledger import Ledger
from danlu.data.sources import Listing, SourceFile
from danlu.errors import DanluError, UserError
from danlu.files import locked, why, write_json
from danlu.recipe.curate_sections import DedupSection
from danlu.recipe.data_sections import DataSection

Report = Callable[[str], None]
Counter = Callable[[list[SourceFile]], Count]
REPORT, STATE, WORK = "report.json", "state.json", "work"
BUSY = "another process is curating into this folder; wait for it, or choose another folder"
WORTH_A_PROCESS = 256 << 20
"""Bytes of input on disk; less is read sooner than another process has started, and that costs CPU besides."""
NAMED = 5
"""Rules that the summary names."""
FAR_BELOW = 1e9
"""Off the score of what failed a soft rule, where the best of some copies is chosen."""


@dataclass(frozen=True)
class Settings:
    """What is done, and with how much of the machine; the last four change no byte of the result."""

    stages: tuple[Stage, ...] = ()
    plan: Plan | None = None
    """How copies are found; None: they are not looked for."""
    paragraphs: Paragraphs | None = None
    """Which repeated paragraphs are taken out; None: none."""
    noise_ratio: float = 0.0
    """Share of the kept tokens that comes from what failed a soft rule."""
    weights: tuple[float, ...] = ()
    """Passes over each source, by which tokens count for noise; empty: one."""
    tokens: str = "bytes"
    """By what tokens are counted, in words, for who reads the report."""
    bad_line_limit: float = 0.01
    workers: int = 1
    """0: as many as there are cores, but none for less than WORTH_A_PROCESS of input."""
    executor: Literal["local", "ray"] = "local"
    memory: int = 4 << 30
    """Bytes that sorting the keys of all documents may take."""


def settings_of(data: DataSection) -> Settings:
    """What the data section of a recipe, which has a curate section, asks for."""
    section = data.curate
    assert section is not None
    return Settings(
        stages=stages_of(section),
        plan=None if section.dedup is None else plan_of(section.dedup),
        paragraphs=paragraphs_of(section.dedup),
        noise_ratio=section.noise_ratio,
        weights=tuple(source.weight for source in data.sources),
        tokens=repr(data.tokenizer),
        bad_line_limit=data.bad_line_limit,
        workers=section.workers,
        executor=data.executor,
        memory=byte_count(data.memory),
    )


def paragraphs_of(section: DedupSection | None) -> Paragraphs | None:
    """Which repeated paragraphs a recipe's section asks to take out."""
    asked = section and section.paragraphs
    return Paragraphs(asked.least_words, asked.most_copies) if asked else None


def byte_count(text: str) -> int:
    """Bytes of a size such as 4GiB, as the recipe checks it."""
    return int(text[:-3]) << {"MiB": 20, "GiB": 30}[text[-3:]]


@dataclass(frozen=True)
class Curated:
    """A folder of curated documents that is complete."""

    folder: Path
    report: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Curated:
        try:
            return cls(folder, json.loads((folder / REPORT).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: no curated documents: {error}; delete it") from None

    def files(self) -> list[SourceFile]:
        """The kept documents as files to read, those of one source together and in order."""
        return _files(self.folder, self.report["shards"], (KEPT, NOISE))

    def clean_files(self) -> list[SourceFile]:
        """The same without what came back as noise."""
        return _files(self.folder, self.report["shards"], (KEPT,))


def _files(folder: Path, shards: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> list[SourceFile]:
    found = []
    for shard in shards:
        for path in [folder / part / f"{shard['name']}.jsonl" for part in parts]:
            if path.exists():
                found.append(SourceFile(str(path), shard["source"], shard["field"], path.stat().st_size))
    return found


def curate(listing: Listing, folder: Path, settings: Settings, report: Report, counter: Counter | None = None) -> Curated:
    """Make a folder with what is worth keeping of the sources, why the rest is not, and report.json.

    counter: makes of the files that are kept a function that counts tokens, for noise control; without it, it counts bytes.

    It is built in `<folder>.partial`, where an interrupted job leaves its shards; the next one with the same input and
    settings goes on from there. A folder that the same job completed is returned as it is.

    Raises:
        UserError: the folder holds something else, too many bad records, or nothing to keep.
        DanluError: the disk is full, or a worker was killed.
    """
    identity = _identity(listing, settings)
    with locked(folder, BUSY):
        if (folder / REPORT).exists():
            done = Curated.open(folder)
            if done.report["identity"] != identity:
                raise UserError(
                    f"{folder}: was made from other input or with other settings; choose another folder, or delete it"
                )
            Ledger.of(done.report["read"], settings.bad_line_limit).check()
            report(f"{folder}: already curated, reused ({done.report['kept']:,} documents)")
            return done
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: exists and holds something else; choose another folder")
        partial = folder.with_name(folder.name + ".partial")
        try:
            _resume(partial, identity, report)
            settle(lambda: _load(settings))
            _run(listing, partial, settings, identity, report, counter)
            if folder.exists():
                folder.rmdir()
            os.replace(partial, folder)
        except BrokenProcessPool:
            raise DanluError(
                f"{folder}: a worker process was killed, perhaps for want of memory; start it again, with fewer workers "
                "if need be: finished shards are kept"
            ) from None
        except OSError as error:
            raise DanluError(
                f"{folder}: cannot be written: {why(error)}; make room and start it again: finished shards are kept"
            ) from None
    return Curated.open(folder)


def summary(done: Curated) -> str:
    """One line on what became of the documents."""
    facts = done.report
    most = sorted(facts["rules"].items(), key=lambda pair: -pair[1])
    rules = ", ".join(f"{count:,} {rule}" for rule, count in most[:NAMED])
    if len(most) > NAMED:
        rules += f", {sum(count for _, count in most[NAMED:]):,} by {len(most) - NAMED} other rules"
    return (
        f"curated: {facts['records']:,} records in, {facts['kept']:,} kept, {facts['rejected']:,} rejected"
        + (f" ({rules})" if rules else "")
        + f", {facts['empty']:,} empty, {facts['unreadable']:,} unreadable"
    )


def _identity(listing: Listing, settings: Settings) -> str:
    """SHA-256 of all that the result depends on."""
    parts: list[Any] = [__version__, repr(settings.plan), [repr(stage) for stage in settings.stages]]
    if settings.paragraphs is not None:
        parts.append(repr(settings.paragraphs))
    if settings.noise_ratio:
        parts.append([settings.noise_ratio, settings.weights, settings.tokens])
    for file in listing.files:
        parts.append([file.path, file.source, file.text, file.code, file.size, os.stat(file.path).st_mtime_ns])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _resume(partial: Path, identity: str, report: Report) -> None:
    state = partial / STATE
    if partial.exists():
        try:
            same = json.loads(state.read_text(encoding="utf-8")) == identity
        except (OSError, ValueError):
            same = False
        if same:
            report(f"{partial}: going on with what an interrupted job left")
            return
        report(f"{partial}: left by a job with other input or settings; removed, starting over")
        shutil.rmtree(partial)
    for name in (WORK, KEPT, LEFT_OUT):
        (partial / name).mkdir(parents=True)
    write_json(state, identity)


def _load(settings: Settings) -> None:
    """Compile what is not compiled yet, so that no two workers do it at once."""
    for stage in settings.stages:
        stage.apply([])
    if (plan := settings.plan) is not None:
        from danlu.data import json_scan

        Sketcher(plan).sketch(*back_to_back([b"a"]))
        line = np.frombuffer(b'{"a": "a"}\n', np.uint8)
        room = np.empty(1, np.int64)
        json_scan.lines(line, 0, line[2:3], 1, np.empty(len(line), np.uint8), room, room.copy())
    if settings.paragraphs is not None:
        from danlu.data.dedup.pieces import pieces

        pieces(*back_to_back([b"a"]), 1)


def _workers(listing: Listing, settings: Settings) -> Workers:
    if settings.executor == "ray":
        return Workers(settings.workers, "ray")
    return Workers(settings.workers or max(1, min(os.cpu_count() or 1, listing.size // WORTH_A_PROCESS)))


def _run(listing: Listing, partial: Path, settings: Settings, identity: str, report: Report, counter: Counter | None) -> None:
    plan = settings.plan
    workers = _workers(listing, settings)
    cut = shards(listing.files)
    work = partial / WORK
    jobs = [(first_pass, shard, work, settings.stages, plan, settings.noise_ratio > 0) for shard in cut]
    sizes = [sum(file.size for file in shard.files) for shard in cut]
    told(each(jobs, workers), sizes, report)
    spools = [Spool.open(work / shard.name) for shard in cut]
    ledger = _ledger(listing, spools, settings.bad_line_limit)
    found, sketches = None, None
    if plan is not None:
        sketches = Sketches([ShardSketch(spool.folder, spool.documents, plan) for spool in spools], plan)
        found = _copies(cut, spools, sketches, settings)
        report(f"copies: {found.groups:,} groups, {len(found.copies):,} documents have a better copy")
    if settings.paragraphs is not None:
        fields, fate = [shard.field for shard in cut], Fates(spools, found)
        spools = trim(fields, spools, fate, settings.paragraphs, settings.memory, workers, report)
    tally = Tally()
    for spool in spools:
        tally.add(spool.counts["tally"])
    finish = Finish.of(cut, spools, found, sketches, partial, workers)
    finish.keep(tally)
    described = [{"name": shard.name, "source": shard.source, "field": shard.field} for shard in cut]
    noise = None
    if settings.noise_ratio:
        count = counter(_files(partial, described, (KEPT,))) if counter else byte_sizes
        noise = finish.noise(tally, settings.noise_ratio, settings.weights or (1.0,) * len(listing.fingerprints), count)
    names = [stage.name for stage in settings.stages] + ["dedup"] * (plan is not None)
    names += [PARAGRAPHS] * (settings.paragraphs is not None)
    kept = ledger.documents - tally.rules.total()
    if not kept:
        most = dict(tally.rules.most_common(3))
        raise UserError(f"nothing is kept of {ledger.records:,} records: {most}, {ledger.bad:,} bad")
    paths = [fingerprint["path"] for fingerprint in listing.fingerprints]
    made = {
        "identity": identity,
        "records": ledger.records,
        "kept": kept,
        "rejected": tally.rules.total(),
        "empty": ledger.empty,
        "unreadable": ledger.bad,
        "rules": dict(sorted(tally.rules.items())),
        "groups": found.groups if found else 0,
        "largest_groups": finish.largest(),
        **account([shard.source for shard in cut], spools, finish.fate, noise, tally, names),
        "read": ledger.as_dict(),
        "shards": described,
    }
    for row in made["sources"]:
        row["path"] = paths[row["source"]]
    if _identity(listing, settings) != identity:
        raise UserError("the sources changed while they were curated; start again")
    write_page(partial, made)
    write_json(partial / REPORT, made)
    (partial / STATE).unlink()
    shutil.rmtree(work)


def _copies(cut: Sequence[Shard], spools: Sequence[Spool], sketches: Sketches, settings: Settings) -> Groups:
    def best(documents: Array) -> tuple[Array, Array]:
        found: list[tuple[Array, Array]] = []
        for spool, rows in zip(spools, np.split(documents, np.searchsorted(documents, sketches.firsts[1:-1])), strict=True):
            rows = rows - sketches.firsts[len(found)]
            # Of copies one that failed a rule never stands for one that did not.
            found.append((spool.scores()[rows] - FAR_BELOW * (spool.draws()[rows] > 0), spool.lengths()[rows]))
        scores, lengths = zip(*found, strict=True)
        return np.concatenate(scores), np.concatenate(lengths)

    jaccard = None
    if sketches.plan.verify == "exact":
        from danlu.data.curate.texts import Texts

        jaccard = Texts(spools, [shard.field for shard in cut], sketches.firsts, sketches.plan).jaccard
    return find(sketches, best, settings.memory, jaccard)


def _ledger(listing: Listing, spools: Sequence[Spool], limit: float) -> Ledger:
    """All that was read, checked against the limit."""
    whole = Ledger(ignored=listing.ignored)
    for spool in spools:
        whole.add(spool.counts["ledger"])
    for listed in listing.unreadable:
        whole.skip(*listed)
    whole.limit = limit
    whole.check()
    return whole

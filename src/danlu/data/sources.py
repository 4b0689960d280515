"""From the sources of a recipe to a sorted list of files."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import sysconfig
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danlu.data import web
from danlu.data.ledger import one_line
from danlu.errors import UserError
from danlu.plural import many
from danlu.recipe.data_sections import Source

FORMATS = {
    **dict.fromkeys((".txt", ".md", ".py"), "whole"),
    **dict.fromkeys((".html", ".htm"), "page"),
    **dict.fromkeys((".csv", ".tsv"), "table"),
    **dict.fromkeys((".warc", ".wet"), "warc"),
    ".jsonl": "lines",
    ".json": "json",
    ".parquet": "parquet",
}
CODE = (".py",)
"""Kinds that are program code, where the recipe does not say."""
COMPRESSIONS = (".gz", ".zst")
STDLIB = "{stdlib}"
INSTALLED = ("site-packages", "dist-packages")
"""Folders inside the standard library's that hold what was installed beside it, and differ from machine to machine."""
KINDS = ".txt .md .py .html .csv .tsv .jsonl .json (each also with .gz or .zst behind it) .warc .wet (also .gz) .parquet"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read."""

    path: str
    source: int
    """Which of data.sources it belongs to."""
    text: str
    """Field that holds the text in JSON and Parquet."""
    size: int
    """Bytes on disk."""
    code: bool = False
    """Whether it is program code."""
    part: tuple[int, int] | None = None
    """Of a file of lines only those that begin in these bytes; None: all."""


@dataclass
class Listing:
    """What the sources come to."""

    files: list[SourceFile] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    """Files that are not read, by suffix or reason."""
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    """Folders and files that could not be listed, with the reason."""
    notes: list[str] = field(default_factory=list)
    """Settings that had no effect, and files that count twice."""
    fingerprints: list[dict[str, Any]] = field(default_factory=list)
    """For each source: path as given, files, bytes on disk, SHA-256 of names and sizes."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


def format_of(name: str) -> tuple[str, str] | None:
    """How a file is read, by its name: (a value of FORMATS, "" | ".gz" | ".zst"), or None."""
    stem, suffix = os.path.splitext(name.lower())
    if suffix in COMPRESSIONS:
        inner = FORMATS.get(os.path.splitext(stem)[1])
        whole = inner in (None, "parquet") or (inner == "warc" and suffix != ".gz")
        return None if whole else (str(inner), suffix)
    return (FORMATS[suffix], "") if suffix in FORMATS else None


def packed(file: SourceFile) -> bool:
    """Whether the file is compressed, so that no place in it can be read by itself."""
    kind = format_of(file.path)
    return kind is not None and kind[1] != ""


def resolve(sources: Sequence[Source], any_kind: bool = False) -> Listing:
    """List the files of all sources, those of one source sorted by path.

    A source is a file, a folder (read to any depth) or a glob, where `*` stays inside one folder and `**` reaches any
    depth. An exclude with a slash is matched against the path below the source's folder, one without against every
    name on that path; whatever lies inside an excluded folder is excluded. Hidden files and folders, files of an
    unknown kind, and broken links are ignored and counted. Links to folders are followed, each folder is read once.
    With any_kind a file that is named outright may be of an unknown kind; it is read as plain text.

    Raises:
        UserError: nothing is there, nothing matches, or a file named outright cannot be read or is of an unknown kind.
    """
    listing = Listing()
    first_source: dict[tuple[int, int], int] = {}
    shared: set[tuple[int, int]] = set()
    for index, source in enumerate(sources):
        where = f"data.sources[{index}].path: {one_line(source.path)!r}"
        root, paths = _find(source, where, index, listing, any_kind)
        files = []
        for path in paths:
            try:
                status = os.stat(path)
            except OSError as error:  # gone since it was listed
                listing.unreadable.append((path, error.strerror or str(error)))
                continue
            files.append(SourceFile(path, index, source.text, status.st_size, _code(source, path)))
            identity = (status.st_dev, status.st_ino)
            if first_source.setdefault(identity, index) != index:
                shared.add(identity)
        _check_packages(files, where)
        names = hashlib.sha256()
        for file in files:
            names.update(os.fsencode(os.path.relpath(file.path, root)) + b"\0" + str(file.size).encode() + b"\n")
        listing.files += files
        listing.fingerprints.append(
            {"path": source.path, "files": len(files), "bytes": sum(f.size for f in files), "sha256": names.hexdigest()}
        )
    if shared:
        listing.notes.append(f"data.sources: {len(shared):,} files are in more than one source, and are read once for each")
    return listing


def _check_packages(files: Sequence[SourceFile], where: str) -> None:
    """UserError: there are files among them that cannot be read for lack of a package."""
    if web.installed():
        return
    pages = [file.path for file in files if (kind := format_of(file.path)) is not None and kind[0] in web.KINDS]
    if pages:
        such, suffix = one_line(pages[0]), os.path.splitext(pages[0])[1]
        raise UserError(
            f"{where} has {many(len(pages), 'file')} such as {such}, and {web.INSTALL}; or leave them out with the source's "
            f'exclude: ["*{suffix}"]'
        )


def _code(source: Source, path: str) -> bool:
    """Whether a file holds program code: as the source says, else by its name."""
    if source.code is not None:
        return source.code
    stem, suffix = os.path.splitext(path.lower())
    return (os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix) in CODE


def _find(source: Source, where: str, index: int, listing: Listing, any_kind: bool) -> tuple[str, list[str]]:
    """The folder that names are relative to, and the sorted paths."""
    path = os.path.expanduser(source.path.replace(STDLIB, sysconfig.get_path("stdlib")))
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not _has_magic(path):
            raise UserError(f"{where}: there is no such file or folder (looked from {one_line(os.getcwd())})") from None
        root, pattern = _split_pattern(path)
        if not os.path.isdir(root):
            raise UserError(f"{where}: there is no folder {one_line(root)} (looked from {one_line(os.getcwd())})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    else:
        if not stat.S_ISDIR(mode):
            if source.exclude:
                listing.notes.append(f"data.sources[{index}].exclude: has no effect on a single file")
            return os.path.dirname(path) or ".", [_explicit(path, mode, where, any_kind)]
        root, pattern = path, ["**", "*"]
    try:
        os.listdir(root)
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}") from None
    excludes = [(text, text.strip("/").split("/")) for text in source.exclude]
    installed = [(name, [name]) for name in INSTALLED] if STDLIB in source.path else []
    walk = _Walk(root, pattern, excludes + installed)
    found = sorted(walk.files(), key=os.fsencode)
    listing.ignored += walk.ignored
    listing.unreadable += walk.unreadable
    for number, (text, _) in enumerate(excludes):
        if not walk.hits[text]:
            listing.notes.append(f"data.sources[{index}].exclude[{number}]: {one_line(text)!r} leaves nothing out")
    if not found:
        seen = ", ".join(f"{count:,} {name}" for name, count in walk.ignored.most_common(5))
        excluded = sum(walk.hits.values())
        raise UserError(
            f"{where}: no file that can be read"
            + (f"; ignored: {seen}" if seen else "")
            + (f"; {excluded:,} files or folders excluded" if excluded else "")
            + f"; the kinds that are read: {KINDS}"
        )
    return root, [os.path.join(root, name) for name in found]


def _explicit(path: str, mode: int, where: str, any_kind: bool) -> str:
    """Check a file that the recipe names outright."""
    if not stat.S_ISREG(mode):
        raise UserError(f"{where}: is not a regular file")
    if format_of(path) is None and (not any_kind or path.lower().endswith(COMPRESSIONS)):
        raise UserError(f"{where}: not a kind that is read; these are: {KINDS}")
    try:
        open(path, "rb").close()
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}") from None
    return path


def _has_magic(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _split_pattern(path: str) -> tuple[str, list[str]]:
    """The leading folders without wildcards, and the rest by segment."""
    parts = Path(path).parts
    fixed = next(i for i, part in enumerate(parts) if _has_magic(part))
    return (str(Path(*parts[:fixed])) if fixed else "."), list(parts[fixed:])


def matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the segments of a path match those of a glob; `**` stands for any number of folders, none included."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return matches(path, pattern[1:]) or (bool(path) and matches(path[1:], pattern))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and matches(path[1:], pattern[1:])


class _Walk:
    """One pass over a folder. Names are relative to it, segments parted by `/`."""

    def __init__(self, root: str, pattern: list[str], excludes: list[tuple[str, list[str]]]) -> None:
        self.root = root
        self.pattern = pattern
        self.excludes = excludes
        self.depth = None if "**" in pattern else len(pattern)
        self.hits: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.unreadable: list[tuple[str, str]] = []

    def files(self) -> Iterator[str]:
        """Relative paths of the files to read, in no particular order."""
        # Links to folders wait until all real folders are done, so that a folder is known by its real name.
        waiting: deque[tuple[str, ...]] = deque([()])
        links: deque[tuple[str, ...]] = deque()
        visited: set[tuple[int, int]] = set()
        while waiting or links:
            folder = (waiting or links).popleft()
            try:
                status = os.stat(self._path(folder))
                if (status.st_dev, status.st_ino) in visited:
                    continue
                visited.add((status.st_dev, status.st_ino))
                entries = sorted(os.scandir(self._path(folder)), key=lambda entry: os.fsencode(entry.name))
            except OSError as error:
                self.unreadable.append((self._path(folder), error.strerror or str(error)))
                continue
            for entry in entries:
                path = (*folder, entry.name)
                if self._excluded(path):
                    continue
                if self._is_folder(entry):
                    if self.depth is not None and len(path) >= self.depth:
                        continue
                    if entry.name.startswith("."):
                        self.ignored["hidden"] += 1
                    else:
                        (links if entry.is_symlink() else waiting).append(path)
                elif matches(path, self.pattern) and self._wanted(entry):
                    yield "/".join(path)

    def _path(self, segments: tuple[str, ...]) -> str:
        return os.path.join(self.root, *segments)

    def _excluded(self, path: tuple[str, ...]) -> bool:
        # The folders above were matched when the walk came by, so only this name or the whole path is new.
        for text, pattern in self.excludes:
            if matches(path[-1:] if len(pattern) == 1 else path, pattern):
                self.hits[text] += 1
                return True
        return False

    @staticmethod
    def _is_folder(entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError:  # a link that leads to itself
            return False

    def _wanted(self, entry: os.DirEntry[str]) -> bool:
        try:
            mode = entry.stat().st_mode
        except OSError:
            self.ignored["broken link"] += 1
            return False
        if entry.name.startswith("."):
            self.ignored["hidden"] += 1
        elif not stat.S_ISREG(mode):
            self.ignored["not a regular file"] += 1
        elif format_of(entry.name) is None:
            self.ignored[os.path.splitext(entry.name)[1].lower() or "without a suffix"] += 1
        else:
            return True
        return False

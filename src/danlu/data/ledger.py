"""What became of everything that was read: documents in = kept + empty + bad, always."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from danlu.errors import UserError

EXAMPLES = 20
"""Bad records that are kept word for word; the others are only counted."""
EARLY_STOP = 1000
"""Bad records from which on a share above the limit stops the reading at once, instead of at the end."""


def one_line(text: str) -> str:
    """`text` on one line that any terminal can print: file names may hold line ends and bytes that are not UTF-8."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())


@dataclass
class Ledger:
    """Counts of one reading of the sources."""

    limit: float = 1.0
    """Share of bad records above which the reading stops (data.bad_line_limit)."""
    files: int = 0
    documents: int = 0
    empty: int = 0
    bad: int = 0
    cut: int = 0
    """Conversations that were longer than a sample; counted among the documents."""
    text_bytes: int = 0
    """UTF-8 bytes of the documents."""
    examples: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    """Files inside folders that are not read, by suffix or reason."""
    disk_bytes_done: int = 0
    """Bytes on disk of the files that are finished."""
    current: BinaryIO | None = None
    """The file that is being read, for the progress."""

    @classmethod
    def of(cls, counts: Mapping[str, Any], limit: float) -> Ledger:
        """The counts that another one's `as_dict` says, to hold them to a limit."""
        return cls(limit, **{name: counts[name] for name in ("documents", "empty", "bad", "examples")})

    @property
    def records(self) -> int:
        """Everything that was looked at: lines of JSON lines, rows of Parquet, else files or their JSON values."""
        return self.documents + self.empty + self.bad

    def keep(self, text_bytes: int, count: int = 1) -> None:
        """Count documents."""
        self.documents += count
        self.text_bytes += text_bytes

    def skip(self, place: str, reason: str, count: int = 1) -> None:
        """Count bad records; raise UserError as soon as it is plain that there are too many."""
        self.bad += count
        if len(self.examples) < EXAMPLES:
            self.examples.append(one_line(f"{place}: {reason}" + (f" ({count:,} records)" if count > 1 else "")))
        if self.bad >= EARLY_STOP:
            self.check()

    def add(self, counts: Mapping[str, Any]) -> None:
        """Add what another ledger's `as_dict` says, without what it ignored."""
        for name in ("files", "documents", "empty", "bad", "text_bytes"):
            setattr(self, name, getattr(self, name) + counts[name])
        self.examples += counts["examples"][: EXAMPLES - len(self.examples)]

    def check(self) -> None:
        """Raise UserError when the share of bad records is above the limit."""
        if self.bad > self.limit * self.records:
            raise UserError(
                f"{self.bad:,} of {self.records:,} records are bad: {self.bad / self.records:.1%}, and "
                f"data.bad_line_limit is {self.limit:.1%}; the first: {self.examples[0]}; mend the input, or raise the limit"
            )

    def position(self) -> int:
        """Bytes on disk read so far, the open file included."""
        if self.current is None or self.current.closed:
            return self.disk_bytes_done
        return self.disk_bytes_done + self.current.tell()

    def as_dict(self) -> dict[str, Any]:
        """What goes into the index of the prepared data."""
        return {
            "files": self.files,
            "records": self.records,
            "documents": self.documents,
            "empty": self.empty,
            "bad": self.bad,
            "cut": self.cut,
            "text_bytes": self.text_bytes,
            "examples": self.examples,
            "ignored": dict(sorted(self.ignored.items())),
        }

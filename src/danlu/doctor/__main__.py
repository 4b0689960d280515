"""``python -m danlu.doctor [FOLDER]`` writes the tables of rules and of audits into docs/, or into FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from danlu.doctor.audit.reference import audits_markdown
from danlu.doctor.reference import rules_markdown
from danlu.errors import EXIT_USAGE


def main(arguments: list[str]) -> int:
    """Write both pages into an existing folder; the exit code."""
    folder = Path(arguments[0] if arguments else "docs")
    if len(arguments) > 1 or not folder.is_dir():
        print(f"there is no folder {str(folder)!r}; run this in the repository, or name one folder", file=sys.stderr)
        return EXIT_USAGE
    for name, text in (("doctor-rules.md", rules_markdown()), ("doctor-audits.md", audits_markdown())):
        path = folder / name
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

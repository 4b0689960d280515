"""``python -m danlu.data.curate.quality [FOLDER]`` writes the table of rules into docs/, or into FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from danlu.data.curate.quality.reference import rules_markdown
from danlu.errors import EXIT_USAGE


def main(arguments: list[str]) -> int:
    """Write curation-rules.md into an existing folder; the exit code."""
    folder = Path(arguments[0] if arguments else "docs")
    if len(arguments) > 1 or not folder.is_dir():
        print(f"there is no folder {str(folder)!r}; run this in the repository, or name one folder", file=sys.stderr)
        return EXIT_USAGE
    path = folder / "curation-rules.md"
    path.write_text(rules_markdown(), encoding="utf-8", newline="\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

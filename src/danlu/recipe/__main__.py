"""``python -m danlu.recipe [FOLDER]`` writes the reference and the JSON Schema into docs/, or into FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from danlu.errors import EXIT_USAGE
from danlu.recipe.reference import json_schema, reference_markdown


def main(arguments: list[str]) -> int:
    """Write recipe.md and recipe.schema.json into an existing folder; the exit code."""
    folder = Path(arguments[0] if arguments else "docs")
    if len(arguments) > 1 or not folder.is_dir():
        print(f"there is no folder {str(folder)!r}; run this in the repository, or name one folder", file=sys.stderr)
        return EXIT_USAGE
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False)
    for name, text in {"recipe.md": reference_markdown(), "recipe.schema.json": schema + "\n"}.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

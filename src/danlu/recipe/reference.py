"""The reference of the recipe for people (Markdown) and for editors (JSON Schema), both made from the types."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from danlu.recipe.fields import Entry, Path, describe, dotted, entry_annotation, every_field, field_names, listed, section_class
from danlu.recipe.other_names import OTHER_NAMES
from danlu.recipe.sections import AUTOMATIC, Recipe

_HEAD = """\
# The recipe

<!-- Written by `python -m danlu.recipe` from the types in src/danlu/recipe/*sections.py; change those, then run it again. -->

One YAML file describes a run. The smallest one that works:

```yaml
# yaml-language-server: $schema=recipe.schema.json
name: first
model: {preset: llama-5m}
data:
  sources:
    - path: "corpus/**/*.txt"
```

- It is YAML 1.2: `3e-4` is a number, `no` is text, `true` and `false` are the only truth values. Text that begins with one of
  `{ [ * & ! | > % @` needs quotes. Anchors, aliases and tags are not read, and a key given twice is an error.
- Any field can be set on the command line by its dotted name, with the value in YAML: `danlu train recipe.yaml train.steps=200
  train.optimizer.learning_rate=1e-4 data.sources.0.weight=2 "generate.prompts=['def ', 'class ']"`. Entries of a list count
  from 0; the last override of a field wins.
- An unknown key, a wrong type or a contradiction is an error before anything starts, with the line, the field and the way out.
- ↻ marks a field that may be changed when a run is resumed.
- [recipe.schema.json](recipe.schema.json) lets an editor complete and check a recipe as you type.
"""

_OTHER_NAMES = """\
## Names from other tools

What Hugging Face, PyTorch, Megatron-LM and nanoGPT call it, and where danlu has it. An error about an unknown key says the same.

| There | In danlu | |
|---|---|---|
"""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a recipe with descriptions and defaults; contradictions between fields are beyond it."""
    schema = Recipe.model_json_schema(mode="validation")
    for name in AUTOMATIC:
        section = schema["properties"][name]
        schema["properties"][name] = {"anyOf": [{"$ref": section.pop("$ref")}, {"const": "auto"}], **section}
    for field in schema["$defs"]["CurateSection"]["properties"].values():
        if any("$ref" in kind for kind in field.get("anyOf", ())):
            field["anyOf"].append({"const": "default"})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "danlu recipe"}


def reference_markdown() -> str:
    """The whole reference: one table a section with type, default and meaning, then the names from other tools."""
    sections: list[tuple[Path, type[BaseModel], bool]] = [((), Recipe, False)]
    for entry in every_field():
        entries = entry_annotation(entry.field.annotation)
        section = section_class(entry.field.annotation if entries is None else entries)
        if section and not any(section is other for _, other, _ in sections):  # what comes again is described once
            sections.append((entry.path, section, entries is not None))
    return "\n".join([_HEAD, *(_section(*each) for each in sections), _other_names()])


def _section(path: Path, section: type[BaseModel], is_list: bool) -> str:
    title = f"`{dotted(path)}`, each entry" if is_list else f"`{dotted(path)}`" if path else "The whole"
    rows = ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
    above: Path = (*path, 0) if is_list else path
    rows += [_row(Entry((*above, name), section.model_fields[name])) for name in field_names(section)]
    return "\n".join([f"## {title}", "", _cell(section.__doc__ or ""), "", *rows, ""])


def _row(entry: Entry) -> str:
    name, field = entry.path[-1], entry.field
    inner = section_class(field.annotation)
    if field.is_required():
        default = "required"
    elif isinstance(field.default, BaseModel):
        default = "its defaults"
    else:
        default = f"`{json.dumps(field.default, ensure_ascii=False)}`"
    kind = ("a section, or null" if default == "`null`" else "a section") if inner else describe(entry.path)
    kind = kind.replace(" (`key: value` lines)", "")
    meaning = (field.description or "") + (" ↻" if entry.resumable else "")
    return f"| `{name}` | {_cell(kind)} | {_cell(default)} | {_cell(meaning)} |"


def _other_names() -> str:
    rows = []
    for name, (paths, note) in OTHER_NAMES.items():
        rows.append(f"| `{name}` | {listed([f'`{path}`' for path in paths], 'and')} | {_cell(note)} |")
    return _OTHER_NAMES + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

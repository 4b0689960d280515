"""The recipe: one typed YAML file that describes a run, validated before anything starts.

Importing it is light: pydantic and ruamel.yaml, no framework.
"""

from danlu.recipe.ignored import ignored
from danlu.recipe.inference import for_inference
from danlu.recipe.load import load, parse
from danlu.recipe.reference import json_schema, reference_markdown
from danlu.recipe.resolve import resolve_shape
from danlu.recipe.sections import Recipe
from danlu.recipe.show import differences, dump, resume_conflicts

__all__ = [
    "Recipe",
    "differences",
    "dump",
    "for_inference",
    "ignored",
    "json_schema",
    "load",
    "parse",
    "reference_markdown",
    "resolve_shape",
    "resume_conflicts",
]

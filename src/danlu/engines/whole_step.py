"""The step of a small model that `danlu hardware measure` times as a whole, beside the parts that the planner adds up."""

from __future__ import annotations

from danlu.recipe import Recipe, parse


def recipe(device: str, precision: str, processes: int) -> Recipe:
    """Of several processes each takes the same work, as data ranks do."""
    return parse(
        {
            "name": "whole-step",
            "stages": ["train"],
            "model": {
                "family": "llama",
                "layers": 3,
                "hidden_size": 320,
                "ffn_size": 864,
                "heads": 5,
                "vocab_size": 6000,
                "tied_embeddings": False,
            },
            "data": {"sources": [{"path": "x"}], "tokenizer": {"path": "x"}, "sequence_length": 192},
            "train": {"steps": 10, "global_batch": 4 * processes, "device": device, "precision": precision},
            "parallel": {"data": processes},
        }
    )

"""Copies of documents: found by MinHash, grouped, and all but the best of each group left out."""

"""Smaller models: 8-bit weights, what they cost in quality, and the files that hold them."""

"""Smaller models: weights of 8 or 4 bits, what they cost in quality, and the files that hold them."""

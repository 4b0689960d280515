"""Generation for many requests at once: a paged cache that shares prefixes, continuous batching, and HTTP in front of it."""

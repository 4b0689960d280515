"""Load on a server that speaks as OpenAI's does, and what its clients see: `danlu bench-serve`."""

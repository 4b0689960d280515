"""One rule a file; a new file is a new rule, and nothing else is touched."""

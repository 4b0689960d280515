"""A linear model over hashed n-grams of characters and words: trained in seconds, and as fast as reading."""

"""How surprising a text is to a small model of good ones: hashed n-grams of characters."""

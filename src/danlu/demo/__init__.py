"""The doctor at work: a tiny run with one thing wrong with it, and what the doctor says as it trains."""

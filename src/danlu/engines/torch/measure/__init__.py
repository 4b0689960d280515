"""Times what a training step consists of, on the machine it runs on. See ``danlu.measure``."""

"""The live page's server: it reads the stores of runs and never writes."""

"""Toxic text: word lists that see through disguises, and a model for what no list says."""

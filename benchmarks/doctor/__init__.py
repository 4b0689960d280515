"""Faults injected into the real trainer, each beside its healthy twin."""

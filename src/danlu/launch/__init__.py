"""Processes of a run: who this one is, how others are started on machines and clusters, and what ended one. No framework."""

"""Memory, time and layout of a run, predicted before any device is paid for. No framework."""

"""Memory, time and layout of a training before any device is paid for. No framework is imported here."""

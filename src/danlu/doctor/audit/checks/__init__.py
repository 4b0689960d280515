"""The audits. Each module has an AUDIT; a new one is found here, and nothing else is touched."""

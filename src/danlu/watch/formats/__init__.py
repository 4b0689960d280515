"""File formats of other watching tools: written and read here without any of their packages."""

"""Two runs side by side: what was set differently, and where their curves part."""

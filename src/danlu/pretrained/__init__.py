"""Published models: into a folder in the Hugging Face layout, and out of a run into GGUF. No framework."""

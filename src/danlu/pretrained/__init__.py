"""Published models: into a folder in the Hugging Face layout, and out of a run into GGUF or PEFT's files."""

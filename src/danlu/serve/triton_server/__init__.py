"""NVIDIA's Triton Inference Server in front of the engine: its environment, its process, and the repository that it reads."""

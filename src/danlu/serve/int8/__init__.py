"""Decoding on a CPU with 8-bit weights and activations: kernels compiled when first used, and the executor over them."""

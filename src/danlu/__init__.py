"""danlu (丹炉): train language models from raw text on PyTorch, then evaluate, sample and export them."""

__version__ = "0.1.0"

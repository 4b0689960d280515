"""danlu (丹炉): from raw text to a served large language model, on PyTorch or PaddlePaddle."""

__version__ = "0.1.0"

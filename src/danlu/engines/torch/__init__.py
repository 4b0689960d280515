"""The torch engine."""

from danlu.engines.torch.process import yield_idle_cores

yield_idle_cores()

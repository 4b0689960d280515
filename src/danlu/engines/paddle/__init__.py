"""The paddle engine."""

from danlu.engines.paddle.process import load

load()

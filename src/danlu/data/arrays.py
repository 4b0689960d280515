"""The type of an array, whatever its shape and element type."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

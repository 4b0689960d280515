"""Rounding in which each input's error is made up for by those that are rounded after it (GPTQ, Frantar et al. 2022).

Shapes: o outputs, i inputs. H is the mean of x x^T over the inputs x (i,) of a calibration text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from danlu.compress.rounding import Floats, Numbers, Scales, nearest, restore, spread, to_integers

Hessian = NDArray[np.float64]
DAMPING = 0.01
"""Of the mean of H's diagonal, added to it: directions that the text hardly shows are not free."""
BLOCK = 128
"""Inputs whose errors are passed on to all later ones at once."""


def compensated(weight: Floats, scale: Scales, bits: int, hessian: Hessian) -> Numbers:
    """Integers (o, i) for these scales, with a squared error of the outputs at most that of rounding, row by row.

    Inputs are taken in the order of their mean square, the largest first, since the last have the least to lose by it. Scales
    are given beforehand, so that the order does not tear groups apart.
    """
    plain = nearest(weight, scale, bits)
    order = np.argsort(-np.diag(hessian), kind="stable")
    factor = _factor(hessian[np.ix_(order, order)])
    steps_io = spread(np.where(scale > 0, scale, 1).astype(np.float32), weight.shape[1]).T[order]
    rest_io = np.ascontiguousarray(weight.T[order])
    made_io = np.empty(rest_io.shape, np.int8)
    for start in range(0, len(order), BLOCK):
        stop = min(start + BLOCK, len(order))
        errors = np.empty((stop - start, rest_io.shape[1]), np.float32)
        for at in range(start, stop):
            made_io[at] = to_integers(rest_io[at] / steps_io[at], bits)
            error = (rest_io[at] - made_io[at] * steps_io[at]) / factor[at, at]
            rest_io[at + 1 : stop] -= factor[at, at + 1 : stop, None] * error
            errors[at - start] = error
        rest_io[stop:] -= factor[start:stop, stop:].T @ errors
    made = np.empty(weight.shape, np.int8)
    made[:, order] = made_io.T
    better = _errors(made, weight, scale, hessian) < _errors(plain, weight, scale, hessian)
    return np.where(better[:, None], made, plain)


def _factor(hessian: Hessian) -> Floats:
    """Upper U with U^T U = the inverse of the damped H: row j says how later inputs make up for an error at j (section 3.3)."""
    damping = DAMPING * float(np.diag(hessian).mean()) or 1.0
    inverse = np.linalg.inv(hessian + damping * np.eye(len(hessian)))
    factor: Floats = np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
    return factor


def _errors(numbers: Numbers, weight: Floats, scale: Scales, hessian: Hessian) -> NDArray[np.float64]:
    """Of each row's output, the mean square over the text."""
    wrong = restore(numbers, scale).astype(np.float64) - weight
    result: NDArray[np.float64] = ((wrong @ hessian) * wrong).sum(axis=1)
    return result

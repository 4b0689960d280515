"""Output projection and cross-entropy in one function, so that the logits of a batch never exist as a whole.

They are made a few rows at a time, and the gradient of each piece is taken at once (the forward already knows it but for one
scalar), as in Liger Kernel (Hsu et al. 2024) and Cut Cross-Entropy (Wijmans et al. 2024).
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from danlu.engines.paddle.vocabulary import VocabularyShard

IGNORED = -100
CHUNK_BYTES = 32 << 20
"""Logits held at once, in the precision of the matrix products."""


class _Known(PyLayer):
    """A scalar whose gradients with respect to two tensors, or the first alone, were computed with it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, known: _Gradients) -> Tensor:
        ctx.known, ctx.weight_type = known, weight.dtype
        return known.total.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        known = ctx.known
        assert not known.spent, "the gradients are scaled in place, so that backward runs once"
        known.spent = True
        hidden = known.hidden.multiply_(grad.astype(known.hidden.dtype))
        return hidden, None if known.weight is None else known.weight.multiply_(grad).astype(ctx.weight_type)


class _Gradients:
    """A loss and what it is differentiated to; a frozen weight is not."""

    def __init__(self, total: Tensor, hidden: Tensor | None, weight: Tensor | None) -> None:
        self.total, self.hidden, self.weight, self.spent = total, hidden, weight, False


def linear_cross_entropy(
    hidden_btd: Tensor,
    weight: Tensor,
    targets_bt: Tensor,
    scale: float,
    tied: bool,
    vocabulary: VocabularyShard | None = None,
) -> Tensor:
    """scale x the sum over supervised targets of -log softmax(hidden @ weight)[target], a scalar in nats.

    hidden_btd (b, t, d); weight (d, v), or (v, d) when tied; targets_bt int64, -100 where nothing is supervised.
    With ``vocabulary``, the weight is this rank's part of it, and every rank gets the loss of the whole.
    Matrix products run in the precision of the hidden states; the softmax is FP32.
    """
    differentiate = paddle.is_grad_enabled() and not hidden_btd.stop_gradient
    hidden_nd = hidden_btd.reshape([-1, hidden_btd.shape[-1]])
    with paddle.no_grad():
        known = _with_gradients(hidden_nd, weight, targets_bt.reshape([-1]), scale, tied, differentiate, vocabulary)
    return _Known.apply(hidden_nd, weight, known) if differentiate else known.total


def _with_gradients(
    hidden_nd: Tensor,
    weight: Tensor,
    targets_n: Tensor,
    scale: float,
    tied: bool,
    differentiate: bool,
    vocabulary: VocabularyShard | None,
) -> _Gradients:
    matrix = weight.astype(hidden_nd.dtype)
    grad_hidden, grad_weight = [], None
    total = paddle.zeros([], dtype="float32")
    rows = max(1, CHUNK_BYTES // (weight.shape[0 if tied else 1] * matrix.element_size()))
    for first in range(0, hidden_nd.shape[0], rows):
        part_nd, targets = hidden_nd[first : first + rows], targets_n[first : first + rows]
        logits_nv = paddle.matmul(part_nd, matrix, transpose_y=tied)
        loss, gradient_nv = _cross_entropy(logits_nv, targets, scale, differentiate, vocabulary)
        total += loss
        if not differentiate:
            continue
        gradient_nv = gradient_nv.astype(matrix.dtype)
        grad_hidden.append(paddle.matmul(gradient_nv, matrix, transpose_y=not tied))
        if weight.stop_gradient:
            continue
        left, right = (gradient_nv, part_nd) if tied else (part_nd, gradient_nv)
        piece = paddle.matmul(left, right, transpose_x=True).astype("float32")
        grad_weight = piece if grad_weight is None else grad_weight.add_(piece)
    whole = grad_hidden[0] if len(grad_hidden) == 1 else paddle.concat(grad_hidden) if grad_hidden else None
    if whole is not None and vocabulary is not None:
        whole = vocabulary.sum(whole)
    return _Gradients(total, whole, grad_weight)


def _cross_entropy(
    logits_nv: Tensor, targets_n: Tensor, scale: float, differentiate: bool, vocabulary: VocabularyShard | None
) -> tuple[Tensor, Tensor]:
    """scale x the summed loss, and its gradient with respect to the logits in FP32."""
    index = targets_n[:, None]
    logits_nv = logits_nv.astype("float32")
    supervised = (index != IGNORED).astype("float32")
    if vocabulary is None:
        # What F.cross_entropy calls, which keeps the softmax to itself: hard labels, softmax within, numerically stable.
        gradient, loss = paddle._C_ops.cross_entropy_with_softmax(logits_nv, index, False, True, True, IGNORED, -1)
        row, here = index.clip(min=0), supervised
    else:
        gradient, loss = vocabulary.cross_entropy(logits_nv, index, IGNORED)
        row, here = vocabulary.local(index)
    if differentiate:
        gradient.put_along_axis_(row, -here, 1, reduce="add")
        gradient.multiply_(supervised * scale)
    return loss.sum() * scale, gradient

"""How far a model's probabilities q are from another's p: f-divergences, and their gradients with respect to q's logits.

n rows, v tokens of the vocabulary, or this rank's part of it; ``summed`` adds up (n, 1) over the ranks with the other parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Summed = Callable[[Tensor], Tensor]
Divergence = Callable[[Tensor, Tensor, Summed], tuple[Tensor, Tensor]]
"""(log p, log q, summed) -> nats (n, 1), gradient (n, v)."""


def forward_kl(log_p_nv: Tensor, log_q_nv: Tensor, summed: Summed) -> tuple[Tensor, Tensor]:
    """KL(p || q), as Hinton et al. 2015 distil: q must cover what p does."""
    p_nv = log_p_nv.exp()
    return summed((p_nv * (log_p_nv - log_q_nv)).sum(-1, keepdim=True)), log_q_nv.exp() - p_nv


def reverse_kl(log_p_nv: Tensor, log_q_nv: Tensor, summed: Summed) -> tuple[Tensor, Tensor]:
    """KL(q || p), as MiniLLM has it (Gu et al. 2024): q stays where p is likely."""
    q_nv, ratio_nv = log_q_nv.exp(), log_q_nv - log_p_nv
    nats_n1 = summed((q_nv * ratio_nv).sum(-1, keepdim=True))
    return nats_n1, q_nv * (ratio_nv - nats_n1)


def jensen_shannon(log_p_nv: Tensor, log_q_nv: Tensor, summed: Summed) -> tuple[Tensor, Tensor]:
    """Half of KL(p || m) and of KL(q || m), with m their mean (Lin 1991); at most log 2."""
    log_m_nv = torch.logaddexp(log_p_nv, log_q_nv) - math.log(2)
    q_nv, ratio_nv = log_q_nv.exp(), log_q_nv - log_m_nv
    of_q_n1 = summed((q_nv * ratio_nv).sum(-1, keepdim=True))
    of_p_n1 = summed((log_p_nv.exp() * (log_p_nv - log_m_nv)).sum(-1, keepdim=True))
    return (of_p_n1 + of_q_n1) / 2, q_nv * (ratio_nv - of_q_n1) / 2


DIVERGENCES: dict[str, Divergence] = {"forward_kl": forward_kl, "reverse_kl": reverse_kl, "jensen_shannon": jensen_shannon}
"""By ``train.distill.divergence``."""

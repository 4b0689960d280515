"""Learning from what a teacher has said before: its likeliest tokens at each place, and how likely they and all others are.

The divergence is that between the two models' probabilities of each of these tokens, and of all others as one. For a divergence
of the f kind it is at most that of whole distributions, which it becomes as the tokens do all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from danlu.data.likeliest import LOGS, TOKENS
from danlu.engines.torch.distillation import Apart, Distillation, mixed
from danlu.engines.torch.divergence import DIVERGENCES
from danlu.engines.torch.log_probabilities import summed
from danlu.engines.torch.loss import Criterion, Head, VocabularyShard, linear_loss
from danlu.engines.torch.objective import Objective
from danlu.recipe.objective_sections import DistillSection


class OfflineDistillation(Objective):
    """As ``Distillation``; where the teacher has said nothing, as of what is held out, the cross-entropy alone."""

    names = Distillation.names

    def __init__(self, settings: DistillSection, device: torch.device) -> None:
        super().__init__(device)
        self.settings, self.taught = settings, False

    def criterion(self, tensors: Mapping[str, Tensor]) -> Criterion | None:
        """By what lies in the batch."""
        self.taught = TOKENS in tensors
        return partial(self._loss, tensors[TOKENS].flatten(0, 1), tensors[LOGS].flatten(0, 1)) if self.taught else None

    def reported(self, mean: float, measured: dict[str, float]) -> tuple[float, dict[str, float]]:
        """The cross-entropy, and what is minimised."""
        if not self.taught:
            return mean, {}
        return measured["cross_entropy"], {"objective": mean, "divergence": measured["divergence"]}

    def _loss(
        self,
        tokens_nk: Tensor,
        logs_nb: Tensor,
        hidden_btd: Tensor,
        weight_vd: Tensor,
        targets_bt: Tensor,
        scale: float,
        vocabulary: VocabularyShard | None,
    ) -> Tensor:
        head, targets_n = Head.of(hidden_btd, weight_vd, vocabulary), targets_bt.reshape(-1)

        def of_logits(logits_nv: Tensor, rows: slice) -> Tensor:
            apart = from_likeliest(tokens_nk[rows], logs_nb[rows], head, self.settings)
            return scale * mixed(logits_nv, apart, targets_n[rows], head, self.settings, scale, self.sums)

        return linear_loss(head, of_logits)


def from_likeliest(tokens_nk: Tensor, logs_nb: Tensor, head: Head, settings: DistillSection) -> Apart:
    """The divergence from k tokens' log-probabilities, and from that of all others together, the last of (n, b = k + 1)."""

    def apart(block: slice, log_q_nv: Tensor) -> tuple[Tensor, Tensor]:
        log_p_nb = torch.log_softmax(logs_nb[block].float(), -1)  # which sum up to 1 but for rounding
        index_nk = tokens_nk[block].long() - head.first_row
        mine_nk = (index_nk >= 0) & (index_nk < log_q_nv.shape[1])
        index_nk = index_nk.clamp(0, log_q_nv.shape[1] - 1)
        log_q_nk = summed(torch.where(mine_nk, log_q_nv.gather(1, index_nk), 0.0), head.group)
        named_nv = torch.zeros_like(log_q_nv).scatter_add_(1, index_nk, mine_nk.float())
        others_nv = log_q_nv.exp().masked_fill_(named_nv > 0, 0.0)
        rest_n1 = summed(others_nv.sum(-1, keepdim=True), head.group).clamp_min_(torch.finfo(torch.float32).tiny)
        log_q_nb = torch.cat([log_q_nk, rest_n1.log()], -1)
        nats_n1, gradient_nb = DIVERGENCES[settings.divergence](log_p_nb, log_q_nb, lambda each: each)
        # Within the others each logit has the share of the gradient that it has of their probability.
        gradient_nv = others_nv.mul_(gradient_nb[:, -1:] / rest_n1)
        return nats_n1, gradient_nv.scatter_add_(1, index_nk, gradient_nb[:, :-1] * mine_nk)

    return apart

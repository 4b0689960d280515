"""Learning which of two answers is the better one, by their probabilities alone (DPO, Rafailov et al. 2023).

A sample holds whole pairs as documents, the preferred answer of each in front; attention keeps documents apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from danlu.engines.base import Batch
from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.frozen import inputs
from danlu.engines.torch.log_probabilities import linear_log_probabilities
from danlu.engines.torch.loss import IGNORED, Criterion, Head, VocabularyShard
from danlu.engines.torch.objective import Objective
from danlu.recipe.objective_sections import DpoSection


class Preference(Objective):
    """The mean over pairs of -log sigmoid(margin), in nats (equation 7 of the paper).

    The margin is beta x (log pi(y+) / ref(y+) - log pi(y-) / ref(y-)). With label smoothing e, as in the paper's appendix on
    noisy preferences (and in Mitchell 2023), it is (1 - e) x the loss + e x the loss of the opposite.
    """

    names = ("margin", "accuracy", "chosen_reward", "rejected_reward")

    def __init__(
        self,
        settings: DpoSection,
        reference: CausalLM,
        device: torch.device,
        as_reference: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Within ``as_reference`` the reference computes as such, where it is also what is trained."""
        super().__init__(device)
        self.settings, self.reference, self.as_reference = settings, reference, as_reference

    @property
    def frozen(self) -> Iterable[Tensor]:
        """The reference's, unless it is what is trained, too."""
        return self.reference.parameters() if self.as_reference is nullcontext else ()

    def count(self, batch: Batch) -> Tensor:
        """Pairs."""
        return _there(batch["targets"].flatten(0, -2), batch["documents"].flatten(0, -2)).sum()

    def criterion(self, tensors: Mapping[str, Tensor]) -> Criterion:
        """Runs the reference."""
        documents_bt = tensors["documents"]
        with torch.no_grad(), self.as_reference():
            ending = partial(_of_answers, documents_bt)
            told: Tensor = self.reference(*inputs(tensors), targets_bt=tensors["targets"], criterion=ending)
        return partial(self._loss, documents_bt, told.reshape(len(documents_bt), -1))

    def _loss(
        self,
        documents_bt: Tensor,
        reference_ba: Tensor,
        hidden_btd: Tensor,
        weight_vd: Tensor,
        targets_bt: Tensor,
        scale: float,
        vocabulary: VocabularyShard | None,
    ) -> Tensor:
        told_ba = _of_answers(documents_bt, hidden_btd, weight_vd, targets_bt, scale, vocabulary)
        there_bp = _there(targets_bt, documents_bt)
        rewards_bp2 = (self.settings.beta * (told_ba - reference_ba)).view(len(told_ba), -1, 2)
        margin_bp = rewards_bp2[..., 0] - rewards_bp2[..., 1]
        e = self.settings.label_smoothing
        nats_bp = -(1 - e) * F.logsigmoid(margin_bp) - e * F.logsigmoid(-margin_bp)
        with torch.no_grad():
            right_bp = (margin_bp > 0).float()
            told = torch.stack([margin_bp, right_bp, rewards_bp2[..., 0], rewards_bp2[..., 1]])
            self.sums += (told * there_bp).sum((1, 2))
        return scale * (nats_bp * there_bp).sum()


def _of_answers(
    documents_bt: Tensor,
    hidden_btd: Tensor,
    weight_vd: Tensor,
    targets_bt: Tensor,
    scale: float,
    vocabulary: VocabularyShard | None,
) -> Tensor:
    """(b, a) log-probability of the supervised tokens of each document; the number of documents is made even."""
    told_bt = linear_log_probabilities(Head.of(hidden_btd, weight_vd, vocabulary), targets_bt.reshape(-1)).view_as(targets_bt)
    return _by_document(told_bt, documents_bt)


def _by_document(values_bt: Tensor, documents_bt: Tensor) -> Tensor:
    """(b, a): sums over each document of a sample, as many as the fullest sample has pairs, twice."""
    answers = 2 * (int(documents_bt.max()) // 2 + 1)
    return values_bt.new_zeros(len(values_bt), answers).scatter_add(1, documents_bt.long(), values_bt)


def _there(targets_bt: Tensor, documents_bt: Tensor) -> Tensor:
    """(b, p) bool: which pairs each sample has; both answers of a pair have supervised tokens."""
    return _by_document((targets_bt != IGNORED).long(), documents_bt)[:, 0::2] > 0

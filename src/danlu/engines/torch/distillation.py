"""Learning from a teacher's probabilities (Hinton et al. 2015), of which neither model's logits ever exist as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from danlu.engines.torch.decoder import CausalLM
from danlu.engines.torch.divergence import DIVERGENCES
from danlu.engines.torch.frozen import Ending, inputs
from danlu.engines.torch.log_probabilities import Targets, log_softmax, summed
from danlu.engines.torch.loss import IGNORED, Criterion, Head, VocabularyShard, blocks, linear_loss
from danlu.engines.torch.objective import Objective
from danlu.recipe.objective_sections import DistillSection


class Distillation(Objective):
    """share x cross-entropy + (1 - share) x temperature^2 x the divergence from the teacher, over the supervised tokens.

    What is reported as the loss is the cross-entropy alone, so that it compares with training without a teacher.
    """

    names = ("cross_entropy", "divergence")

    def __init__(self, settings: DistillSection, teacher: CausalLM, device: torch.device) -> None:
        super().__init__(device)
        self.settings, self.teacher = settings, teacher

    @property
    def frozen(self) -> Iterable[Tensor]:
        """The teacher's."""
        return self.teacher.parameters()

    def criterion(self, tensors: Mapping[str, Tensor]) -> Criterion:
        """Runs the teacher."""
        ending = Ending()
        with torch.no_grad():
            self.teacher(*inputs(tensors), targets_bt=tensors["targets"], criterion=ending)
        assert ending.seen is not None
        return partial(self._loss, Head.of(*ending.seen, self.teacher.vocabulary).in_precision())

    def reported(self, mean: float, measured: dict[str, float]) -> tuple[float, dict[str, float]]:
        """The cross-entropy, and what is minimised."""
        return measured["cross_entropy"], {"objective": mean, "divergence": measured["divergence"]}

    def _loss(
        self,
        teacher: Head,
        hidden_btd: Tensor,
        weight_vd: Tensor,
        targets_bt: Tensor,
        scale: float,
        vocabulary: VocabularyShard | None,
    ) -> Tensor:
        head, targets_n = Head.of(hidden_btd, weight_vd, vocabulary), targets_bt.reshape(-1)

        def of_logits(logits_nv: Tensor, rows: slice) -> Tensor:
            with torch.autocast(logits_nv.device.type, enabled=False):
                teacher_nv = teacher.hidden_nd[rows] @ teacher.weight_vd.t()
            return scale * mixed(logits_nv, teacher_nv, targets_n[rows], head, self.settings, scale, self.sums)

        return linear_loss(head, of_logits)


def mixed(
    logits_nv: Tensor,
    teacher_nv: Tensor,
    targets_n: Tensor,
    head: Head,
    settings: DistillSection,
    scale: float,
    sums: Tensor,
) -> Tensor:
    """The summed loss of some rows; the logits are overwritten by scale x its gradient.

    ``sums`` gets the summed cross-entropy and divergence added.
    """
    divergence, t, share = DIVERGENCES[settings.divergence], settings.temperature, settings.cross_entropy

    total = torch.zeros((), dtype=torch.float32, device=logits_nv.device)
    for block in blocks(logits_nv):
        supervised = (targets_n[block] != IGNORED)[:, None]
        targets, logits = Targets(targets_n[block], head), logits_nv[block].float()
        plain = log_softmax(logits, head.group)
        nats = -targets.pick(plain)
        at_temperature = plain if t == 1 else log_softmax(logits / t, head.group)
        of_teacher = log_softmax(teacher_nv[block].float() / t, head.group)
        apart, gradient = divergence(of_teacher, at_temperature, partial(summed, group=head.group))
        targets.add(gradient.mul_((1 - share) * t).add_(plain.exp_(), alpha=share), -share)
        logits_nv[block] = gradient.mul_(supervised * scale)
        both = torch.stack([(nats * supervised).sum(), (apart * supervised).sum()])
        sums += both
        total += share * both[0] + (1 - share) * t * t * both[1]
    return total

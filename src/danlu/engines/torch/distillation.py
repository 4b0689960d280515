"""Learning from a teacher's probabilities (Hinton et al. 2015), of which neither model's logits ever exist as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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

Apart = Callable[[slice, Tensor], tuple[Tensor, Tensor]]
"""(rows, log q at the temperature (n, v)) -> divergence in nats (n, 1), its gradient with respect to q's logits (n, v)."""


OWN = "own"
"""In a batch, (b, t): whether the model has written the sample itself."""


class Distillation(Objective):
    """share x cross-entropy + (1 - share) x temperature^2 x the divergence from the teacher, over the supervised tokens.

    What is reported as the loss is the cross-entropy alone, so that it compares with training without a teacher.
    """

    names = ("cross_entropy", "divergence", "given")

    def __init__(self, settings: DistillSection, teacher: CausalLM, device: torch.device) -> None:
        super().__init__(device)
        self.settings, self.teacher = settings, teacher
        self.writes = False
        """Whether the model has had a hand in the batches since ``told``."""

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
        own_n1 = tensors[OWN].reshape(-1, 1) if OWN in tensors else None
        return partial(self._loss, Head.of(*ending.seen, self.teacher.vocabulary).in_precision(), own_n1)

    def reported(self, mean: float, measured: dict[str, float]) -> tuple[float, dict[str, float]]:
        """The cross-entropy of what was given, and what is minimised, which stands for it where nothing was."""
        more, given = {"objective": mean, "divergence": measured["divergence"]}, measured["given"]
        if not self.writes:
            return measured["cross_entropy"], more
        self.writes = False
        return (measured["cross_entropy"] / given if given else mean), more

    def _loss(
        self,
        teacher: Head,
        own_n1: Tensor | None,
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
            apart = from_logits(teacher_nv, head, self.settings)
            own = None if own_n1 is None else own_n1[rows]
            return scale * mixed(logits_nv, apart, targets_n[rows], head, self.settings, scale, self.sums, own)

        return linear_loss(head, of_logits)


def from_logits(teacher_nv: Tensor, head: Head, settings: DistillSection) -> Apart:
    """The divergence from what the teacher's logits of some rows say."""

    def apart(block: slice, log_q_nv: Tensor) -> tuple[Tensor, Tensor]:
        log_p_nv = log_softmax(teacher_nv[block].float() / settings.temperature, head.group)
        return DIVERGENCES[settings.divergence](log_p_nv, log_q_nv, partial(summed, group=head.group))

    return apart


def mixed(
    logits_nv: Tensor,
    apart: Apart,
    targets_n: Tensor,
    head: Head,
    settings: DistillSection,
    scale: float,
    sums: Tensor,
    own_n1: Tensor | None = None,
) -> Tensor:
    """The summed loss of some rows; the logits are overwritten by scale x its gradient.

    ``sums`` gets the summed cross-entropy, the divergence and the number of supervised rows added; what is the
    model's ``own`` has no cross-entropy and does not count there.
    """
    t = settings.temperature
    given_n1 = torch.ones_like(targets_n[:, None], dtype=torch.float32) if own_n1 is None else (~own_n1).float()
    total = torch.zeros((), dtype=torch.float32, device=logits_nv.device)
    for block in blocks(logits_nv):
        supervised, given = (targets_n[block] != IGNORED)[:, None], given_n1[block]
        share = settings.cross_entropy * given
        targets, logits = Targets(targets_n[block], head), logits_nv[block].float()
        plain = log_softmax(logits, head.group)
        nats = -targets.pick(plain)
        at_temperature = plain if t == 1 else log_softmax(logits / t, head.group)
        divergence, gradient = apart(block, at_temperature)
        targets.add(gradient.mul_((1 - share) * t).addcmul_(plain.exp_(), share), -share)
        logits_nv[block] = gradient.mul_(supervised * scale)
        sums += torch.stack([(nats * supervised * given).sum(), (divergence * supervised).sum(), (supervised * given).sum()])
        total += ((share * nats + (1 - share) * t * t * divergence) * supervised).sum()
    return total

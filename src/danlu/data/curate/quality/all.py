"""Every rule, in the order in which they judge: what is too short or too long first, then what repeats itself, then the rest."""

from __future__ import annotations

from danlu.data.curate.quality.chinese import CHINESE
from danlu.data.curate.quality.gopher import GOPHER, REPETITION
from danlu.data.curate.quality.web import C4, FINEWEB

RULES = [*GOPHER, *CHINESE, *REPETITION, *C4, *FINEWEB]

"""Continuous batching: every step computes the next token of all that decode, and a part of the prompts that wait.

Not a thread of its own and no text of HTTP: `step` is called by whoever drives it.
"""

from __future__ import annotations

from collections import Counter, deque

from danlu.errors import UserError
from danlu.serve.blocks import BlockCache
from danlu.serve.executor import BLOCK, Executor, Logits, Piece
from danlu.serve.guide import Dead
from danlu.serve.lookup import guess
from danlu.serve.sampling import draw, log_probabilities
from danlu.serve.sequence import Output, Reason, Sequence

STEP_TOKENS = 256
"""Tokens of a step: long prompts are computed in parts, between which others decode."""
RUNNING = 64
"""Sequences that are computed at the same time."""
GUESSES = 4
"""Tokens that are guessed ahead of one that is decoded, and computed with it; guesses that are wrong cost their computation."""
FEW = 4
"""Sequences up to which weights are read for so few rows that some more are almost free."""


class Engine:
    """Sequences over one executor. Results do not depend on what else runs, on the cache, or on preemption."""

    def __init__(
        self, executor: Executor, step_tokens: int = STEP_TOKENS, running: int = RUNNING, guesses: int = GUESSES
    ) -> None:
        self.executor, self.cache = executor, BlockCache(executor.blocks)
        self.step_tokens, self.most_running, self.guesses = step_tokens, running, guesses
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In the order of their arrival."""
        self.counts: Counter[str] = Counter()

    @property
    def limit(self) -> int:
        """Tokens of the longest sequence: prompt and answer."""
        return min(self.executor.context, self.executor.blocks * BLOCK)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn. UserError: see `check`."""
        self.check(sequence)
        self.waiting.append(sequence)

    def check(self, sequence: Sequence) -> None:
        """UserError: the prompt is empty, too long, or not of this vocabulary."""
        if not sequence.tokens:
            raise UserError("the prompt is empty; give at least one token")
        if len(sequence.tokens) >= self.limit:
            raise UserError(
                f"the prompt has {len(sequence.tokens)} tokens; prompt and answer together hold at most {self.limit}: "
                "shorten the prompt"
            )
        if not 0 <= min(sequence.tokens) <= max(sequence.tokens) < self.executor.vocab_size:
            raise UserError(f"the prompt has a token that is not in 0 to {self.executor.vocab_size - 1}")

    def cancel(self, sequence: Sequence) -> None:
        """Drop a sequence, wherever it is; what it has computed stays in the cache for others."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self._leave(sequence)

    @property
    def busy(self) -> bool:
        """Is there something left to compute?"""
        return bool(self.running or self.waiting)

    def step(self) -> list[tuple[Sequence, Output]]:
        """Compute one step; what came of it, sequence by sequence."""
        plan = self._plan()
        if not plan:
            return []
        pieces, drafts = [], []
        for sequence, count in plan.items():
            end = sequence.computed + count
            whole = end == len(sequence.tokens)
            draft = self._draft(sequence, plan) if whole and count == 1 else []
            tokens = sequence.tokens[sequence.computed : end] + draft
            pieces.append(Piece(tokens, sequence.computed, sequence.table, len(draft) + 1 if whole else 0))
            drafts.append(draft)
        logits = iter(self.executor.run(pieces))
        outputs = []
        for (sequence, count), piece, draft in zip(plan.items(), pieces, drafts, strict=True):
            rows = [next(logits) for _ in range(piece.logits)]
            sequence.computed += count
            self.counts["computed_tokens"] += len(piece.tokens)
            made = self._advance_all(sequence, rows, draft) if rows else []
            # Behind what was right, the cache holds wrong guesses: they are written over before anything reads them.
            self.cache.keep(sequence.tokens[: sequence.computed], sequence.table)
            outputs += [(sequence, output) for output in made]
            if made and made[-1].reason:
                self._leave(sequence)
        return outputs

    def _draft(self, sequence: Sequence, plan: dict[Sequence, int]) -> list[int]:
        """Guesses of what comes after the next token, as far as there is room for them without taking any from others."""
        if len(plan) > FEW:
            return []
        left = min(sequence.prompt + sequence.sampling.max_tokens, self.limit) - len(sequence.tokens) - 1
        room = len(sequence.table) * BLOCK - len(sequence.tokens)
        return guess(sequence.tokens, min(self.guesses, left, room))

    def _advance_all(self, sequence: Sequence, rows: list[Logits], draft: list[int]) -> list[Output]:
        """Draw the next token, and those after it for as long as the guesses were what would have been drawn."""
        made = [self._advance(sequence, rows[0])]
        for logits_v, guessed in zip(rows[1:], draft, strict=True):
            if made[-1].reason or made[-1].token != guessed:
                break
            sequence.computed += 1
            self.counts["guessed_tokens"] += 1
            made.append(self._advance(sequence, logits_v))
        return made

    def _advance(self, sequence: Sequence, logits_v: Logits) -> Output:
        """Draw the next token of a sequence and say what it adds."""
        sampling, guide = sequence.sampling, sequence.guide
        try:
            allowed_v = guide.masked(logits_v) if guide else logits_v
        except Dead:
            return Output(sequence.text.finish(), None, None, [], "error")
        token = draw(allowed_v, sampling, sequence.tokens, sequence.prompt)
        if guide:
            guide.take(token)
        if token in sequence.ends and not sampling.ignore_end:
            return Output(sequence.text.finish(), None, None, [], "stop")
        sequence.tokens.append(token)
        self.counts["generated_tokens"] += 1
        logprob, top = (None, []) if sampling.logprobs is None else log_probabilities(logits_v, token, sampling.logprobs)
        text = sequence.text.push(token)
        reason: Reason | None = None
        if sequence.text.stopped:
            reason = "stop"
        elif len(sequence.tokens) >= min(sequence.prompt + sampling.max_tokens, self.limit):
            text += sequence.text.finish()
            reason = "stop" if sequence.text.stopped else "length"
        return Output(text, token, logprob, top, reason)

    def _plan(self) -> dict[Sequence, int]:
        """How many tokens of which sequences this step computes: first of those that decode, then of prompts, oldest first."""
        plan: dict[Sequence, int] = {}
        room = self.step_tokens
        for sequence in sorted(self.running, key=lambda each: each.due > 1):  # stable: oldest first
            count = min(sequence.due, room)
            if count and sequence in self.running and self._reserve(sequence, count, plan):
                plan[sequence] = count
            room = self.step_tokens - sum(plan.values())
        while self.waiting and room and len(self.running) < self.most_running:
            sequence = self.waiting[0]
            self._reuse(sequence)
            count = min(sequence.due, room)
            if not self._grow(sequence, count):
                self._forget(sequence)
                break
            self.running.append(self.waiting.popleft())
            if not sequence.admitted:
                sequence.admitted, sequence.cached = True, sequence.computed
                self.counts["prompt_tokens"] += sequence.prompt
                self.counts["cached_tokens"] += sequence.cached
            plan[sequence] = count
            room -= count
        return plan

    def _reuse(self, sequence: Sequence) -> None:
        """Begin with what the cache holds of the tokens; the last one is computed in any case, for its logits."""
        found = self.cache.match(sequence.tokens[:-1])
        sequence.table, sequence.computed = found.blocks, len(found.blocks) * BLOCK
        if found.partial is None:
            return
        if (block := self.cache.allocate()) is not None:
            self.executor.copy(found.partial, block)
            sequence.table.append(block)
            sequence.computed += found.partial_tokens
        self.cache.release([found.partial])

    def _reserve(self, sequence: Sequence, count: int, plan: dict[Sequence, int]) -> bool:
        """Blocks for the next tokens, if need be from the newest sequences, which then wait and are computed anew."""
        while not self._grow(sequence, count):
            newest = self.running.pop()
            plan.pop(newest, None)
            self._forget(newest)
            self.waiting.appendleft(newest)
            self.counts["preemptions"] += 1
            if newest is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, count: int) -> bool:
        while len(sequence.table) * BLOCK < sequence.computed + count:
            if (block := self.cache.allocate()) is None:
                return False
            sequence.table.append(block)
        return True

    def _forget(self, sequence: Sequence) -> None:
        self.cache.release(sequence.table)
        sequence.table, sequence.computed = [], 0

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._forget(sequence)

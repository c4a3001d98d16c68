"""The reasoning of one sequence under a budget of tokens. Runs in the worker's event loop.

When the budget is used up, the closing mark is written for the model, and generation continues after it: the sequence
    is submitted again with all its tokens, which the engine finds in its prefix cache. Penalties of presence and
    frequency count from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from djl_python.core.types import FinishReason, SamplingParams, TokenEvent

from ..prepared import Prepared
from .choice import Choice
from .seeds import sibling_seed

#: The rest of a sequence draws with the seed of a sibling that no request can have.
_AFTER_THOUGHT: Final = 1 << 20


class Thought:
    """The tokens of a sequence that may reason.

    Args:
        budget: tokens that the reasoning may have, its opening mark included.
        mark: the ids of the closing mark.
        most: most tokens of the whole answer.

    Attributes:
        made: the ids that the sequence has generated.
    """

    def __init__(self, budget: int, mark: Sequence[int], most: int) -> None:
        self.made: list[int] = []
        self._budget = budget
        self._mark = mark
        self._most = most
        self._closed = False

    @classmethod
    def of(cls, prepared: Prepared) -> Thought | None:
        """The thought of a sequence; None: it has no budget."""
        budget = prepared.request.thinking_budget
        if budget is None or not prepared.closing_mark:
            return None
        return cls(budget.tokens, prepared.closing_mark, prepared.request.sampling.max_new_tokens)

    def note(self, event: TokenEvent) -> None:
        """Note a token that the engine has generated."""
        if not self._closed:
            self.made.append(event.token_id)

    def is_spent(self, choice: Choice) -> bool:
        """Whether the sequence still reasons, and has no tokens left for it."""
        return not self._closed and choice.thinks and choice.reasoning_tokens >= self._budget

    def closing_events(self, sampling: SamplingParams) -> list[TokenEvent]:
        """The events of the closing mark; its tokens were certain, hence their log-probability of 0."""
        self._closed = True
        mark = list(self._mark[: self._most - len(self.made)])
        self.made += mark
        last = FinishReason.LENGTH if len(self.made) >= self._most else None
        logprob = 0.0 if sampling.logprobs else None
        return [
            TokenEvent(0, token_id, logprob=logprob, finish=last if position == len(mark) else None)
            for position, token_id in enumerate(mark, 1)
        ]

    def sampling_after(self, sampling: SamplingParams) -> SamplingParams:
        """The parameters of the rest of the sequence: a grammar applies to it from its first token on."""
        grammar = None if sampling.grammar is None else msgspec.structs.replace(sampling.grammar, before=None)
        return msgspec.structs.replace(
            sampling,
            max_new_tokens=sampling.max_new_tokens - len(self.made),
            min_new_tokens=max(0, sampling.min_new_tokens - len(self.made)),
            seed=sibling_seed(sampling.seed, _AFTER_THOUGHT),
            grammar=grammar,
            prompt_logprobs=None,
        )

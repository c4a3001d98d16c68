"""One sequence in the batch. Runs in the engine process; no tensors.

A sequence is a list of tokens, of which the first `computed` have their keys and values in the cache. There is no
separate prefill and decode state: whatever is not computed yet is work, in chunks; when all of it is computed, the
last position's logits give the next token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...core.errors import GenerationError
from ...core.types import FinishReason, Images, SamplingParams, TokenEvent

PromptEntry = tuple[float | None, tuple[tuple[int, float], ...]]
#: What a range of positions holds: token ids, but where an image begins, its digest.
Content = tuple[int | bytes, ...]
#: The id in place of a drawn token where the model's scores are not numbers (NaN).
NO_TOKEN: Final = -1


class GrammarState(Protocol):
    """A sequence's position in its grammar, which goes on with each token."""

    @property
    def state(self) -> Any:
        """What the grammar's library knows of the position, to compute masks of."""
        ...

    @property
    def words(self) -> int:
        """How many 32-bit words a mask of tokens has."""
        ...

    def advance(self, token_id: int) -> bool:
        """Take the token that was drawn, and tell whether it ended the text.

        Raises:
            GenerationError: the grammar has become too costly to follow, or does not allow this token.
        """
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Identity, tokens and cache blocks of one request.

    Attributes:
        tokens: prompt and generated ids.
        computed: how many of `tokens` are in the cache.
        blocks: the cache blocks that hold them, in order.
        sealed: how many leading blocks are registered for sharing by content.
        prompt_entries: per prompt position, its log-probability and alternatives, when asked for.
        matcher: its position in its grammar, if it has one.
        images: those of its prompt, if it has any.
        stops: numbers of tokens after which its recurrent state is worth saving (`state_slots`).
        began_s: when the first step that worked on it began, by time.perf_counter.
        long_rope: whether it uses the rotary embedding of long contexts (LongRoPE).
    """

    id: int
    tokens: list[int]
    prompt_length: int
    sampling: SamplingParams
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    sealed: int = 0
    prompt_entries: list[PromptEntry] = field(default_factory=list)
    matcher: GrammarState | None = None
    images: Images | None = None
    stops: tuple[int, ...] = ()
    long_rope: bool = False
    began_s: float | None = None

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    def content(self, start: int, stop: int) -> Content:
        """What positions `start` .. `stop`-1 hold. After equal prefixes, equal content means equal keys and values."""
        tokens: list[int | bytes] = list(self.tokens[start:stop])
        for position, digest in self.images.marks if self.images is not None else ():
            if start <= position < stop:
                tokens[position - start] = digest
        return tuple(tokens)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt log-probabilities were asked for and are not all there yet."""
        return self.sampling.prompt_logprobs is not None and len(self.prompt_entries) < self.prompt_length

    def append(
        self,
        token_id: int,
        logprob: float,
        top: tuple[tuple[int, float], ...],
        eos_ids: frozenset[int],
        max_length: int,
    ) -> TokenEvent:
        """Add a generated token, and tell whether it is the last.

        Raises:
            GenerationError: there is no token, or the sequence's grammar can't be followed any further.
        """
        if token_id == NO_TOKEN:
            raise GenerationError(
                "the model's scores are not numbers (NaN): its weights are damaged, or its numbers overflow, which "
                "option.dtype=fp32 would tell"
            )
        complete = self.matcher is not None and self.matcher.advance(token_id)
        self.tokens.append(token_id)
        sampling = self.sampling
        finish: FinishReason | None = None
        if token_id in sampling.stop_token_ids:
            finish = FinishReason.STOP
        elif complete or (token_id in eos_ids and not sampling.ignore_eos):
            finish = FinishReason.EOS
        elif self.generated >= sampling.max_new_tokens or len(self.tokens) >= max_length:
            finish = FinishReason.LENGTH
        first = self.generated == 1
        return TokenEvent(
            request_id=self.id,
            token_id=token_id,
            logprob=logprob if sampling.logprobs else None,
            finish=finish,
            top=top,
            prompt=tuple(self.prompt_entries) if first else (),
            running_s=time.perf_counter() - self.began_s if first and self.began_s is not None else None,
        )

"""One sequence in the batch. Runs in the engine process; no tensors.

A sequence is a list of tokens, of which the first `computed` have their keys and values in the cache. There is no
separate prefill and decode state: whatever is not computed yet is work, in chunks; when all of it is computed, the
last position's logits give the next token.

The sequence of an encoder-decoder model begins with what its encoder reads, up to the end of a block; what the decoder
reads and generates follows. A position of the encoder has the keys and values of cross-attention in the cache.
"""

from __future__ import annotations

import array
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...core.errors import GenerationError
from ...core.sequence_request import Pictures, SequenceRequest
from ...core.turns.precedence import ANY, Precedence
from ...core.types import FinishReason, Images, SamplingParams, TokenEvent

PromptEntry = tuple[float | None, tuple[tuple[int, float], ...]]
#: The content of a range of positions: token ids, and at the beginning of an image its digest.
Content = tuple[int | bytes, ...]
#: The id in place of a drawn token where the model's scores are not numbers (NaN).
NO_TOKEN: Final = -1


class GrammarState(Protocol):
    """A sequence's position in its grammar, which goes on with each token."""

    @property
    def state(self) -> Any:
        """The state of the grammar's library at this position, from which it computes masks."""
        ...

    @property
    def words(self) -> int:
        """How many 32-bit words a mask of tokens has."""
        ...

    def charge(self, cpu_s: float) -> None:
        """Record the cost of the next token's mask, in seconds of a processor."""
        ...

    def accept_token(self, token_id: int) -> bool:
        """Take the drawn token; whether it ended the text.

        Raises:
            GenerationError: the grammar has become too costly to follow, or does not allow this token.
        """
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Identity, tokens and cache blocks of one request.

    Attributes:
        tokens: the encoder's ids, if the model has an encoder; the prompt's; the generated ones.
        computed: how many of `tokens` are in the cache.
        cached: how many of the prompt's tokens were found in the cache, once it has been looked up; the fewest if it
            was looked up again, because it may then find its own blocks.
        blocks: the cache blocks that hold them, in order.
        sealed: how many leading blocks are registered for sharing by content.
        prompt_entries: per prompt position, its log-probability and alternatives, when asked for.
        prompt_ranks: for each entry, how many tokens are at least as likely there.
        matcher: its position in its grammar; None: it has no grammar.
        images: the images of its prompt.
        stops: numbers of tokens after which its recurrent state is worth saving (`state_slots`).
        began_s: when the first step that worked on it began, by time.perf_counter.
        long_rope: whether it uses the rotary embedding of long contexts (LongRoPE).
        adapter_number: the number of its LoRA adapter, 0 without one. A later one of the same name has another.
        adapter_slot: where its runner holds the adapter, while it runs; 0: it has none.
        encoder_length: how many tokens the encoder reads; 0: there is none.
        decoder_start: where the decoder's tokens begin, a multiple of the cache's block size.
        forced_last: the token in place of the one that is drawn when there may be no more; None: none.
        encoder_digest: of all that the encoder reads: each of its positions depends on all others.
        precedence: whose it is and how urgent.
        cache_salt: only sequences with an equal one share blocks with it.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    sampling: SamplingParams
    computed: int = 0
    cached: int | None = None
    blocks: list[int] = field(default_factory=list)
    sealed: int = 0
    prompt_entries: list[PromptEntry] = field(default_factory=list)
    prompt_ranks: list[int | None] = field(default_factory=list)
    matcher: GrammarState | None = None
    images: Images | None = None
    stops: tuple[int, ...] = ()
    long_rope: bool = False
    began_s: float | None = None
    adapter_number: int = 0
    adapter_slot: int = 0
    encoder_length: int = 0
    decoder_start: int = 0
    encoder_digest: bytes = b""
    forced_last: int | None = None
    precedence: Precedence = ANY
    cache_salt: str = ""

    @classmethod
    def of(cls, request: SequenceRequest, block_size: int = 1) -> Sequence:
        """The sequence of a request, of which nothing has been computed.

        Args:
            block_size: tokens of a block of the cache, where the encoder's do not share one with the decoder's.
        """
        assert not isinstance(request.images, Pictures)  # they are for engines that prepare images themselves
        prompt, read = request.prompt_ids, request.encoder_ids
        start = -(-len(read) // block_size) * block_size
        tokens = [*read, *[0] * (start - len(read)), *prompt]
        digest = hashlib.sha256(array.array("q", read).tobytes()).digest() if read else b""
        return cls(
            request.id,
            tokens,
            len(tokens),
            request.sampling,
            images=request.images,
            encoder_length=len(read),
            decoder_start=start,
            encoder_digest=digest,
            precedence=request.precedence,
            cache_salt=request.cache_salt,
        )

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    def content(self, start: int, stop: int) -> Content:
        """The content of positions `start` .. `stop`-1. After equal prefixes, equal content means equal keys and
        values.
        """
        tokens: list[int | bytes] = list(self.tokens[start:stop])
        for position, digest in self.images.marks if self.images is not None else ():
            if start <= position < stop:
                tokens[position - start] = digest
        if self.encoder_length and not start:
            tokens[0] = self.encoder_digest
        return tuple(tokens)

    @property
    def _cached_tokens(self) -> int | None:
        """How many tokens of the client's prompt were found in the cache."""
        if self.cached is None or not self.encoder_length:
            return self.cached
        return min(self.cached, self.encoder_length)

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
        """Add a generated token; whether it is the last.

        Raises:
            GenerationError: there is no token, or the sequence's grammar can't be followed any further.
        """
        if token_id == NO_TOKEN:
            raise GenerationError(
                "the model's scores are not numbers (NaN): its weights are damaged, or its numbers overflow, which "
                "option.dtype=fp32 would tell"
            )
        complete = self.matcher is not None and self.matcher.accept_token(token_id)
        sampling = self.sampling
        finish: FinishReason | None = None
        if token_id in sampling.stop_token_ids:
            finish = FinishReason.STOP
        elif complete or (token_id in eos_ids and not sampling.ignore_eos):
            finish = FinishReason.EOS
        elif self.generated + 1 >= sampling.max_new_tokens or len(self.tokens) + 1 - self.decoder_start >= max_length:
            finish = FinishReason.LENGTH
            if self.forced_last is not None:
                token_id, logprob = self.forced_last, 0.0
        self.tokens.append(token_id)
        first = self.generated == 1
        return TokenEvent(
            request_id=self.id,
            token_id=token_id,
            logprob=logprob if sampling.logprobs else None,
            finish=finish,
            top=top,
            prompt=tuple(self.prompt_entries) if first else (),
            running_s=time.perf_counter() - self.began_s if first and self.began_s is not None else None,
            cached_tokens=self._cached_tokens if first else None,
            prompt_ranks=tuple(self.prompt_ranks) if first else (),
        )

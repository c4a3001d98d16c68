"""One generation's text: the engine's events in, tokens with their text out.

Runs in the worker, synchronously, once per event. The texts of the released tokens, joined, are the generated text: a
    token is held back while its text could be the beginning of a stop sequence, and text that a stop sequence cuts off
    is removed from the tokens' texts too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..core.types import Finish, FinishReason, GenerateRequest, TextOptions, Token, TokenEvent, TopToken
from .stop import StopMatcher, StopSequences
from .tokens.detokenizer import detokenizer
from .tokens.tokenizer import Tokenizer


class PromptRead(NamedTuple):
    """The engine's facts about a prompt, which come with the first token of a sequence.

    Attributes:
        tokens: the prompt's tokens, when asked for.
        cached_tokens: how many of them were found in the engine's cache; None: it is not known.
    """

    tokens: tuple[Token, ...] = ()
    cached_tokens: int | None = None


class TextStream:
    """Turns one sequence's TokenEvents into tokens with text.

    Args:
        request: `text` and `sampling` are used; `sampling.seed` is reported if the request samples.
        stops: its compiled stop sequences; None if it has none.
        prompt_ids: the ids that the engine was given.
        prompt: the prompt as text.
        prompt_read: the facts about the prompt, from another sequence of it; None: this one is the first.
        encoder_ids: the prompt's, where an encoder reads it; `prompt_ids` are then what the decoder begins with.

    Attributes:
        prompt_read: the facts about the prompt, once this sequence has a token.
        cumulative_logprob: the sum over all tokens so far, held ones included.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: GenerateRequest,
        stops: StopSequences | None,
        prompt_ids: Sequence[int],
        prompt: str,
        prompt_read: PromptRead | None = None,
        encoder_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._sampling = request.sampling
        self._options = request.text
        self._prompt_ids = encoder_ids or prompt_ids
        self._prompt = prompt
        self._detokenizer = detokenizer(tokenizer, prompt_ids, request.text)
        self._matcher = None if stops is None else StopMatcher(stops)
        self._held: list[Token] = []
        self._texts: list[str] = []
        self._count = 0
        self.prompt_read = prompt_read
        self.cumulative_logprob = 0.0

    def push(self, event: TokenEvent) -> tuple[list[Token], Finish | None]:
        """The tokens that this event releases, and the Finish if it ends the sequence.

        A Finish with reason STOP that the engine did not announce means that a stop sequence matched: the caller must
        cancel the sequence. Events with an `error` must not be passed.
        """
        if self.prompt_read is None:
            self.prompt_read = PromptRead(self._prefill_tokens(event) if event.prompt else (), event.cached_tokens)
        self._count += 1
        if event.logprob is not None:
            self.cumulative_logprob += event.logprob
        token_id, reason = event.token_id, event.finish
        if reason is None:
            text, special = self._detokenizer.push(token_id), token_id in self._tokenizer.special_ids
        else:
            text, special = self._last_text(event)
        stop = None
        token = self._token(token_id, text, special, event.logprob, event.top)
        tokens = [token]
        if self._matcher is None:
            self._texts.append(text)
        else:
            tokens, stop = self._match(self._matcher, token, reason is not None)
            reason = reason if stop is None else FinishReason.STOP
            self._texts += [token.text for token in tokens]
            if stop is None and reason is FinishReason.STOP:
                stop = self._stop_of(token_id)
        return tokens, None if reason is None else self._finish(reason, stop)

    def cut(self) -> tuple[list[Token], Finish]:
        """End the text with the tokens so far, as a limit on its length does: the tokens that were held, the Finish."""
        held, self._held = self._held, []
        self._texts += [token.text for token in held]
        return held, self._finish(FinishReason.LENGTH, None)

    def _last_text(self, event: TokenEvent) -> tuple[str, bool]:
        """The text of the event that ends the sequence, and whether its token is special."""
        options = self._options
        # The token that stopped a text is no part of it, even where special tokens show. The end of text is special
        # in this place, also where a checkpoint has an ordinary token for it.
        without_stop = not options.include_stop_str_in_output
        left_out = {
            FinishReason.EOS: without_stop or options.skip_special_tokens,
            FinishReason.STOP: without_stop,
        }
        if left_out.get(event.finish or FinishReason.LENGTH):
            return self._detokenizer.flush(), True
        text = self._detokenizer.push(event.token_id) + self._detokenizer.flush()
        special = event.token_id in self._tokenizer.special_ids
        if event.finish is FinishReason.STOP and special and options.skip_special_tokens:
            text += self._stop_of(event.token_id) or ""  # the detokenizer leaves it out
        return text, special

    def _stop_of(self, token_id: int) -> str | None:
        """The stop sequence that is this token; None: none is."""
        word = self._tokenizer.id_to_token(token_id)
        return word if word in self._options.stop_sequences else None

    def _match(self, matcher: StopMatcher, token: Token, last: bool) -> tuple[list[Token], str | None]:
        """Hold, release or cut; (tokens to release, the stop sequence that matched)."""
        self._held.append(token)
        match = matcher.feed(token.text, honoured=self._count >= self._sampling.min_new_tokens)
        if match is not None:
            start, end = match
            # How many characters to cut off; `start` and `end` count from the beginning of this token's text.
            drop = len(token.text) - (end if self._options.include_stop_str_in_output else start)
            held = "".join(token.text for token in self._held)
            begin = len(held) - len(token.text)
            return _cut(self._held, drop), held[begin + start : begin + end]
        if last:
            return self._held, None
        return self._release_before(matcher.held), None

    def _release_before(self, held_chars: int) -> list[Token]:
        """Release the held tokens, except those that have any of the last `held_chars` characters."""
        keep = len(self._held)
        while held_chars > 0:
            keep -= 1
            held_chars -= len(self._held[keep].text)
        tokens, self._held = self._held[:keep], self._held[keep:]
        return tokens

    def _finish(self, reason: FinishReason, stop: str | None) -> Finish:
        prefill, cached_tokens = self.prompt_read or PromptRead()
        return Finish(
            reason=reason,
            stop=stop,
            text="".join(self._texts),
            prompt=self._prompt,
            prompt_tokens=len(self._prompt_ids),
            generated_tokens=self._count,
            cached_tokens=cached_tokens,
            seed=self._sampling.seed if self._sampling.do_sample else None,
            prefill=prefill,
            cumulative_logprob=self.cumulative_logprob,
        )

    def _token(
        self,
        token_id: int,
        text: str,
        special: bool,
        logprob: float | None,
        top: Sequence[tuple[int, float]],
        rank: int | None = None,
    ) -> Token:
        if logprob is None:
            return Token(token_id, text, None, special)
        name, partial = self._tokenizer.name_of(token_id)
        return Token(token_id, text, logprob, special, self._top(top), name, partial, rank)

    def _top(self, pairs: Sequence[tuple[int, float]]) -> tuple[TopToken, ...]:
        special_ids = self._tokenizer.special_ids
        entries = ((token_id, logprob, *self._tokenizer.name_of(token_id)) for token_id, logprob in pairs)
        return tuple(
            TopToken(token_id, name, logprob, token_id in special_ids, partial)
            for token_id, logprob, name, partial in entries
        )

    def _prefill_tokens(self, event: TokenEvent) -> tuple[Token, ...]:
        """The prompt's tokens. Special ones keep their text: joined, the texts are the prompt as the model saw it."""
        ids = self._prompt_ids
        reader = detokenizer(self._tokenizer, (), TextOptions(skip_special_tokens=False))
        texts = [reader.push(token_id) for token_id in ids]
        if texts:
            texts[-1] += reader.flush()
        special_ids, ranks = self._tokenizer.special_ids, event.prompt_ranks or (None,) * len(ids)
        return tuple(
            self._token(token_id, text, token_id in special_ids, logprob, top, rank)
            for token_id, text, (logprob, top), rank in zip(ids, texts, event.prompt, ranks, strict=True)
        )


def _cut(tokens: list[Token], drop: int) -> list[Token]:
    """The tokens without the last `drop` characters of their joined text; no token is removed."""
    kept: list[Token] = []
    for token in reversed(tokens):
        dropped = min(drop, len(token.text))
        drop -= dropped
        if dropped:
            text = token.text[: len(token.text) - dropped]
            token = msgspec.structs.replace(token, text=text)
        kept.append(token)
    return kept[::-1]

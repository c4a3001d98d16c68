"""Completions in OpenAI's form, which LMI's clients send too: one or several prompts, each of which is continued.

Runs in the worker. `echo` puts the prompt before the answer; with `max_tokens` 0 only the prompt is returned, which is
how clients score texts. Sources: OpenAI's API reference (completions), TGI 2.3.2's OpenAPI document.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ... import __version__
from ...config import ModelConfig
from ...core.errors import ParameterError, PayloadError
from ...core.types import Branching, Delta, Finish, FinishReason, GenerateRequest, Token
from .adapters import adapter_of_model
from .chat.answer import Usage, UsageCount
from .fields.generation import (
    Alternatives,
    GenerationFields,
    TokenId,
    check_fields,
    sampling_params,
    text_options,
    without_effect,
)
from .fields.sequence_limits import MAX_CHOICES, excess_sequences
from .fields.structured_output import grammar_of, refuse_restrictions
from .framing import DoneFormatter, around
from .request_body import shown
from .typed_body import read_body, unknown_fields

DEFAULT_MAX_TOKENS: Final = 32
#: OpenAI's names.
FINISH_REASONS: Final = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ERROR: "error",
}
#: Same seed, same fingerprint: same answer.
SYSTEM_FINGERPRINT: Final = f"djl-serving-{__version__}"
_PROMPT_FORMS: Final = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"


# ------------------------------------------------------------------------------------------------ the request


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of a completion request."""

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        Meta(description="What to go on with.", extra={"expected": _PROMPT_FORMS}),
    ]
    logprobs: Annotated[Alternatives, Meta(description="Alternatives to report with each token.")] | None = None
    echo: Annotated[bool, Meta(description="Put the prompt before the text.")] | None = None
    best_of: (
        Annotated[int, Meta(ge=1, le=MAX_CHOICES, description="Sequences of which the best n are given.")] | None
    ) = None
    suffix: Annotated[str, Meta(description="Not taken: text that follows the answer.")] | None = None

    # Extensions.
    add_special_tokens: (
        Annotated[bool, Meta(description="Add the tokenizer's special tokens to a prompt; true if absent.")] | None
    ) = None


@dataclass(frozen=True)
class ParsedCompletion:
    """A completion request as received, and as a GenerateRequest for each prompt."""

    fields: CompletionRequest
    requests: tuple[GenerateRequest, ...]
    ignored: tuple[str, ...]


def read_completion(body: dict[str, Any], model: ModelConfig, *, must_fit: bool) -> ParsedCompletion:
    """Check a completion request.

    Args:
        must_fit: whether max_tokens beyond the context is an error; otherwise the context ends the answer.

    Raises:
        PayloadError: about the prompt.
        ParameterError: about anything else.
    """
    refuse_restrictions(body)
    fields = read_body(body, CompletionRequest, payload=("prompt",))
    ignored = unknown_fields(body, CompletionRequest, model) + without_effect(fields, model)
    prompts = _prompts(fields.prompt)
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    check_fields(fields, max_tokens)
    branching = _branching(fields, len(prompts))
    _check(fields)
    sampling = sampling_params(
        fields,
        model,
        max_new_tokens=max(max_tokens, 1),
        grammar=grammar_of(fields),
        top_logprobs=fields.logprobs or 0,
        prompt_logprobs=fields.logprobs if fields.echo else None,
    )
    names = tuple(sorted(set(ignored)))
    requests = (
        GenerateRequest(
            prompt=prompt,
            sampling=sampling,
            branching=branching,
            text=text_options(fields),
            add_special_tokens=fields.add_special_tokens is not False,
            truncate=fields.truncate_prompt_tokens,
            must_fit=must_fit and fields.max_tokens is not None,
            bad_sequences=tuple(fields.bad_words or ()),
            adapter=adapter_of_model(fields.model, model),
            ignored=names,
        )
        for prompt in prompts
    )
    return ParsedCompletion(fields, tuple(requests), names)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    found: list[str | tuple[int, ...]] = []
    if prompt and all(isinstance(item, int) for item in prompt):
        found = [tuple(item for item in prompt if isinstance(item, int))]
    elif all(isinstance(item, str) for item in prompt):
        found = [item for item in prompt if isinstance(item, str)]
    elif all(isinstance(item, list) for item in prompt):
        found = [tuple(item) for item in prompt if isinstance(item, list)]
    if not found or () in found:
        raise PayloadError(f"prompt: expected {_PROMPT_FORMS}, got {shown(prompt)}", "prompt")
    return found


def _branching(fields: CompletionRequest, prompts: int) -> Branching:
    n = fields.n or 1
    best_of = fields.best_of or n
    if best_of < n:
        raise ParameterError(f"best_of: expected at least n ({n}), got {best_of}", "best_of")
    if best_of > n and fields.stream:
        raise ParameterError(f"best_of: expected n ({n}) in a stream, got {best_of}", "best_of")
    if wrong := excess_sequences(prompts, best_of):
        raise ParameterError(f"prompt: {wrong}", "prompt")
    return Branching(n=n, best_of=best_of)


def _check(fields: CompletionRequest) -> None:
    if fields.suffix:
        raise ParameterError("suffix: this model does not fill gaps; send the text before it as prompt", "suffix")
    if fields.max_tokens == 0 and not fields.echo:
        raise ParameterError("max_tokens: expected an integer >= 1 (0 only with echo=true), got 0", "max_tokens")


# ------------------------------------------------------------------------------------------------ the answer


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry for each token. Offsets are into the choice's text, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One text, or a piece of it: finish_reason is null (TGI: empty) in pieces before the last."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, or one object of a stream; the last object has the usage, if it is asked for."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


@dataclass(slots=True)
class _Sequence:
    """One text so far. Texts and tokens are kept only if they are not streamed.

    Attributes:
        chunk: encodes a chunk from its text alone; set once a stream without logprobs has begun, and used for all
            chunks but the last.
    """

    chunk: Callable[[str], bytes] | None = None
    chars: int = 0
    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None


class CompletionFormatter(DoneFormatter):
    """The answer to one completion request; a subclass says what an error looks like in a stream.

    Args:
        framing: json, jsonlines or sse; the last two stream.
        tgi: whether to write TGI's shapes.
        headers: further response headers.
    """

    def __init__(
        self,
        framing: str,
        parsed: ParsedCompletion,
        *,
        model: str,
        tgi: bool,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(framing, headers)
        self._fields = parsed.fields
        self._n = parsed.fields.n or 1
        self._scores_only = parsed.fields.max_tokens == 0
        self.shows_logprobs = parsed.fields.logprobs is not None
        self._model = model
        self._tgi = tgi
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._count = UsageCount(self._n)

    def push(self, delta: Delta) -> bytes:
        sequence = self._sequences[delta.choice]
        if sequence.chunk is not None and delta.finish is None:
            return sequence.chunk(delta.text) if delta.text else b""
        text = "" if self._scores_only else delta.text
        tokens = () if self._scores_only or self._fields.logprobs is None else delta.tokens
        if delta.finish is not None:
            sequence.finish = self._finish(delta.finish)
            self._count.add(delta.choice, sequence.finish)
        if self.stream:
            if self._fields.echo:
                text, tokens = _echoed(delta.prompt, delta.prefill) + text, (*delta.prefill, *tokens)
            return self._piece(delta.choice, sequence, text, tokens)
        sequence.texts.append(text)
        sequence.tokens += tokens
        return b""

    def end(self) -> bytes:
        if not self.stream:
            choices = [self._choice(index, sequence) for index, sequence in sorted(self._sequences.items())]
            return self._encode(self._object(choices, self._count.usage()))
        if not self._fields.include_usage:
            return self._done
        return self._encode(self._object([], self._count.usage())) + self._done

    def _finish(self, finish: Finish) -> Finish:
        """The finish, without the one token that the engine must generate, if the client asked for none."""
        if not self._scores_only:
            return finish
        return msgspec.structs.replace(finish, generated_tokens=0, reason=FinishReason.LENGTH)

    def _piece(self, index: int, sequence: _Sequence, text: str, tokens: Sequence[Token]) -> bytes:
        """A chunk; b"" if the step has nothing to report (half a character, say)."""
        if not text and not tokens and sequence.finish is None:
            return b""
        if self._fields.logprobs is None and not self._scores_only and sequence.finish is None:
            sequence.chunk = around(lambda text: self._chunk(index, text, None, None))
            return sequence.chunk(text)
        logprobs = self._logprobs(tokens, sequence.chars)
        sequence.chars += len(text)
        return self._chunk(index, text, logprobs, sequence.finish)

    def _chunk(self, index: int, text: str, logprobs: CompletionLogprobs | None, finish: Finish | None) -> bytes:
        before = "" if self._tgi else None
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=before if finish is None else FINISH_REASONS[finish.reason],
        )
        return self._encode(self._object([choice], None if self._fields.include_usage else UNSET))

    def _choice(self, index: int, sequence: _Sequence) -> CompletionChoice:
        finish = sequence.finish
        assert finish is not None
        text, tokens = "".join(sequence.texts), sequence.tokens
        if self._fields.echo:
            text, tokens = _echoed(finish.prompt, finish.prefill) + text, [*finish.prefill, *tokens]
        return CompletionChoice(index, text, self._logprobs(tokens), FINISH_REASONS[finish.reason])

    def _object(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=SYSTEM_FINGERPRINT,
            choices=choices,
            usage=usage,
        )

    def _logprobs(self, tokens: Iterable[Token], offset: int = 0) -> CompletionLogprobs | None:
        if self._fields.logprobs is None:
            return None
        shape = CompletionLogprobs([], [], [], [])
        for token in tokens:
            shape.tokens.append(token.text if token.name is None else token.name)
            shape.token_logprobs.append(token.logprob)
            shape.top_logprobs.append(_top(token))
            shape.text_offset.append(offset)
            offset += len(token.text)
        return shape


def _echoed(prompt: str, prefill: Sequence[Token]) -> str:
    """The prompt before an answer. With logprobs it is its tokens' text, special tokens included, so that the offsets
    are right."""
    return "".join(token.text for token in prefill) or prompt


def _top(token: Token) -> dict[str, float] | None:
    """Log-probabilities by name of the alternatives and the token itself; None for the first token of a prompt."""
    own = token.alternative
    if own is None:
        return None
    top: dict[str, float] = {}
    for alternative in (*token.top, own):
        # Two tokens may have the same name: the likelier one, which comes first, stays.
        top.setdefault(alternative.text, alternative.logprob)
    return top

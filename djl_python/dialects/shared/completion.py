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
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ... import __version__
from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError, PayloadError
from ...core.types import Branching, Delta, Finish, FinishReason, GenerateRequest, Token
from .adapters import adapter_of_model
from .chat.usage import Usage, UsageCount
from .completion_shapes import Completion, CompletionChoice, CompletionLogprobs, completion_logprobs, echoed
from .fields.generation import (
    Alternatives,
    TokenId,
    check_fields,
    sampling_params,
    text_options,
    without_effect,
)
from .fields.sequence_limits import excess_sequences
from .fields.structured_output import grammar_of, refuse_restrictions
from .framing import DoneFormatter, around
from .request_body import shown
from .token_reports import TokenReportFields, check_reports, prompt_logprobs, reports_without_effect
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
#: Rules that the type can't express.
_PROMPT_SCHEMA: Final = {
    "minItems": 1,
    "oneOf": [
        {"type": "string"},
        *({"type": "array", "items": {"type": name}} for name in ("string", "integer", "array")),
    ],
}
_PROMPT_FORMS: Final = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"


# ------------------------------------------------------------------------------------------------ the request


class CompletionRequest(TokenReportFields, frozen=True, kw_only=True):
    """The body of a completion request."""

    prompt: Annotated[
        str | list[str | TokenId | Annotated[list[TokenId], Meta(extra_json_schema={"minItems": 1})]],
        Meta(description="What to go on with.", extra={"expected": _PROMPT_FORMS}, extra_json_schema=_PROMPT_SCHEMA),
    ]
    logprobs: Annotated[Alternatives, Meta(description="Alternatives to report with each token.")] | None = None
    echo: Annotated[bool, Meta(description="Put the prompt before the text.")] | None = None
    best_of: (
        Annotated[int, Meta(ge=1, le=budgets.CHOICES.most, description="Sequences of which the best n are given.")]
        | None
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
    ignored += reports_without_effect(fields, logprobs=fields.logprobs is not None)
    prompts = _prompts(fields.prompt)
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    check_fields(fields, max_tokens)
    check_reports(fields)
    branching = _branching(fields, len(prompts))
    _check(fields)
    sampling = sampling_params(
        fields,
        model,
        max_new_tokens=max(max_tokens, 1),
        grammar=grammar_of(fields),
        top_logprobs=fields.logprobs or 0,
        prompt_logprobs=_prompt_logprobs(fields),
    )
    names = tuple(sorted(set(ignored)))
    first = GenerateRequest(
        prompt=prompts[0],
        sampling=sampling,
        branching=branching,
        text=text_options(fields),
        add_special_tokens=fields.add_special_tokens is not False,
        truncate=fields.truncate_prompt_tokens,
        must_fit=must_fit and fields.max_tokens is not None,
        bad_sequences=tuple(fields.bad_words or ()),
        adapter=adapter_of_model(fields.model, model),
        priority=fields.priority,
        cache_salt=fields.cache_salt or "",
        ignored=names,
    )
    others = (msgspec.structs.replace(first, prompt=prompt) for prompt in prompts[1:])
    return ParsedCompletion(fields, (first, *others), names)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    prompts: list[str | tuple[int, ...]] = []
    if prompt and all(isinstance(item, int) for item in prompt):
        prompts = [tuple(item for item in prompt if isinstance(item, int))]
    elif all(isinstance(item, str) for item in prompt):
        prompts = [item for item in prompt if isinstance(item, str)]
    elif all(isinstance(item, list) for item in prompt):
        prompts = [tuple(item) for item in prompt if isinstance(item, list)]
    if not prompts or () in prompts:
        raise PayloadError(f"prompt: expected {_PROMPT_FORMS}, got {shown(prompt)}", "prompt")
    return prompts


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


def _prompt_logprobs(fields: CompletionRequest) -> int | None:
    """How many alternatives to report with each token of the prompt; None: report none of its tokens."""
    echoed = fields.logprobs if fields.echo else None
    asked = [count for count in (echoed, fields.reported_prompt_logprobs) if count is not None]
    return max(asked, default=None)


def _check(fields: CompletionRequest) -> None:
    if fields.suffix:
        raise ParameterError("suffix: this model does not fill gaps; send the text before it as prompt", "suffix")
    if fields.max_tokens == 0 and not fields.echo:
        raise ParameterError("max_tokens: expected an integer >= 1 (0 only with echo=true), got 0", "max_tokens")


# ------------------------------------------------------------------------------------------------ the answer


@dataclass(slots=True)
class _Sequence:
    """One text so far. Texts and tokens are kept only if they are not streamed.

    Attributes:
        chunk: encodes a chunk from its text alone; set once a stream without logprobs has begun, and used for all
            chunks but the last.
        begun: whether a piece has been sent.
    """

    chunk: Callable[[str], bytes] | None = None
    begun: bool = False
    chars: int = 0
    generated: int = 0
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
        self._shows_ids = bool(parsed.fields.return_token_ids)
        self._model = model
        self._tgi = tgi
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._count = UsageCount(self._n)
        self._prompt_ids: Sequence[list[int]] = ()

    def prepared(self, prompt_ids: Sequence[list[int]], *, splits_reasoning: bool) -> None:
        self._prompt_ids = prompt_ids

    def push(self, delta: Delta) -> bytes:
        sequence = self._sequences[delta.choice]
        if sequence.chunk is not None and delta.finish is None:
            return sequence.chunk(delta.text) if delta.text else b""
        sequence.generated += len(delta.tokens)
        text = "" if self._scores_only else delta.text
        tokens = () if self._scores_only or not self._reports_tokens else delta.tokens
        if delta.finish is not None:
            sequence.finish = self._finish(delta.finish)
            self._count.add(delta.choice, sequence.finish)
        if self.stream:
            prefill: tuple[Token, ...] = ()
            if self._fields.echo:
                prefill = delta.prefill if self.shows_logprobs else ()
                text = echoed(delta.prompt, prefill) + text
            return self._piece(delta.choice, sequence, text, prefill, tokens)
        sequence.texts.append(text)
        sequence.tokens += tokens
        return b""

    def end(self) -> bytes:
        if not self.stream:
            choices = [self._choice(index, sequence) for index, sequence in sorted(self._sequences.items())]
            return self._encode(self._object(choices, self._count.usage()))
        if self._tgi or not self._fields.include_usage:
            return self._done
        return self._encode(self._object([], self._count.usage())) + self._done

    def _finish(self, finish: Finish) -> Finish:
        """The finish, without the one token that the engine must generate, if the client asked for none."""
        if not self._scores_only:
            return finish
        return msgspec.structs.replace(finish, generated_tokens=0, reason=FinishReason.LENGTH)

    @property
    def _reports_tokens(self) -> bool:
        """Whether the answer tells of tokens that have no text yet."""
        return self.shows_logprobs or self._shows_ids

    def _piece(
        self, index: int, sequence: _Sequence, text: str, prefill: Sequence[Token], tokens: Sequence[Token]
    ) -> bytes:
        """A chunk; b"" if the step has nothing to report (half a character, say)."""
        if not text and not prefill and not tokens and sequence.finish is None:
            return b""
        alike = not (self._reports_tokens or self._scores_only or self._fields.continuous_usage)
        if alike and sequence.finish is None:
            sequence.chunk = around(lambda text: self._chunk(index, text, None, None, UNSET))
            return sequence.chunk(text)
        logprobs = self._logprobs((*prefill, *tokens), sequence.chars)
        sequence.chars += len(text)
        return self._chunk(index, text, logprobs, sequence.finish, self._ids_of(tokens))

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        finish: Finish | None,
        token_ids: list[int] | UnsetType,
    ) -> bytes:
        first, self._sequences[index].begun = not self._sequences[index].begun, True
        before = "" if self._tgi else None
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=before if finish is None else FINISH_REASONS[finish.reason],
            token_ids=token_ids,
            prompt_token_ids=self._prompt_ids_of(index) if first else UNSET,
        )
        return self._encode(self._object([choice], self._usage_so_far(index)))

    def _usage_so_far(self, index: int) -> Usage | UnsetType | None:
        """The usage in an object of a stream that has text: as it was asked for, and in TGI's last one of a text."""
        sequence = self._sequences[index]
        generated, finish = sequence.generated, sequence.finish
        if self._fields.continuous_usage:
            prompt_tokens = len(self._prompt_ids[index // self._n])
        elif self._tgi and finish is not None:
            prompt_tokens = finish.prompt_tokens
        else:
            return None if self._fields.include_usage and not self._tgi else UNSET
        if finish is not None:
            generated = finish.generated_tokens
        return Usage(prompt_tokens, generated, prompt_tokens + generated)

    def _choice(self, index: int, sequence: _Sequence) -> CompletionChoice:
        finish = sequence.finish
        assert finish is not None
        text, prefill = "".join(sequence.texts), tuple[Token, ...]()
        if self._fields.echo:
            prefill = finish.prefill if self.shows_logprobs else ()
            text = echoed(finish.prompt, prefill) + text
        alternatives = self._fields.reported_prompt_logprobs
        return CompletionChoice(
            index,
            text,
            self._logprobs((*prefill, *sequence.tokens)),
            FINISH_REASONS[finish.reason],
            self._ids_of(sequence.tokens),
            self._prompt_ids_of(index),
            UNSET if alternatives is None else prompt_logprobs(finish.prefill, alternatives),
        )

    def _ids_of(self, tokens: Sequence[Token]) -> list[int] | UnsetType:
        return [token.id for token in tokens] if self._shows_ids else UNSET

    def _prompt_ids_of(self, index: int) -> list[int] | UnsetType:
        return self._prompt_ids[index // self._n] if self._shows_ids else UNSET

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
        by_id = bool(self._fields.return_tokens_as_token_ids)
        return completion_logprobs(tokens, self._fields.logprobs, offset=offset, by_id=by_id)

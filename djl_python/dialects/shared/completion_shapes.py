"""The shapes of a completion's answer, whole or in pieces. Runs in the worker.

Sources: OpenAI's API reference (completions), TGI 2.3.2's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...core.types import Token, TopToken
from .chat.usage import Usage
from .token_reports import PromptLogprobs, name_of


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry for each token. Offsets are into the choice's text, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One text, or a piece of it: finish_reason is null (TGI: empty) in pieces before the last.

    The ids of the prompt's tokens, in the first piece, and of the text's are there with return_token_ids.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, or one object of a stream; the last object has the usage, if it is asked for. TGI: in a stream, the
    last object of each text has its usage."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


def echoed(prompt: str, prefill: Sequence[Token]) -> str:
    """The prompt before an answer. With logprobs it is its tokens' text, special tokens included, so that the offsets
    are right."""
    return "".join(token.text for token in prefill) or prompt


def completion_logprobs(
    tokens: Iterable[Token], alternatives: int, *, offset: int = 0, by_id: bool = False
) -> CompletionLogprobs:
    """The log-probabilities of tokens, and of so many alternatives to each.

    Args:
        offset: where their text begins in the choice's.
        by_id: whether tokens have their ids for names.
    """
    shape = CompletionLogprobs([], [], [], [])
    for token in tokens:
        named = token.alternative or TopToken(token.id, token.text if token.name is None else token.name, 0.0)
        shape.tokens.append(name_of(named, by_id))
        shape.token_logprobs.append(token.logprob)
        shape.top_logprobs.append(_top(token, alternatives, by_id))
        shape.text_offset.append(offset)
        offset += len(token.text)
    return shape


def _top(token: Token, alternatives: int, by_id: bool) -> dict[str, float] | None:
    """Log-probabilities by name of the alternatives and the token itself; None for the first token of a prompt."""
    own = token.alternative
    if own is None:
        return None
    top: dict[str, float] = {}
    for alternative in (*token.top[:alternatives], own):
        # Two tokens may have the same name: the likelier one, which comes first, stays.
        top.setdefault(name_of(alternative, by_id), alternative.logprob)
    return top

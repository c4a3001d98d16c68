"""vLLM's additions to OpenAI's answers: token ids, and log-probabilities of the prompt.

Runs in the worker; for chats and completions. Source: vLLM's OpenAI-compatible server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from ...core.errors import ParameterError
from ...core.types import Token, TopToken
from .fields.generation import Alternatives, GenerationFields


class TokenReportFields(GenerationFields, frozen=True, kw_only=True):
    """The fields that ask for them."""

    return_token_ids: (
        Annotated[bool, Meta(description="vLLM's: the ids of the prompt's tokens and of the answer's.")] | None
    ) = None
    return_tokens_as_token_ids: (
        Annotated[bool, Meta(description="vLLM's: log-probabilities name a token by its id, as `token_id:5`.")] | None
    ) = None
    prompt_logprobs: (
        Annotated[
            Alternatives,
            Meta(description="vLLM's: log-probabilities of the prompt's tokens, with alternatives; not in a stream."),
        ]
        | None
    ) = None

    @property
    def reported_prompt_logprobs(self) -> int | None:
        """How many alternatives to report with each token of the prompt; None: report none of its tokens."""
        return None if self.stream else self.prompt_logprobs


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token at a position of the prompt; the likeliest one there has rank 1. A rank is null if the engine does not
    report it.
    """

    logprob: float
    rank: int | None
    decoded_token: str


#: For each token of the prompt: the token itself and the likeliest ones in its place, by id; null for the first.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


def check_reports(fields: TokenReportFields) -> None:
    """Check what the types and bounds do not cover.

    Raises:
        ParameterError: log-probabilities of the prompt are asked for in a stream, where 0 asks for none, as in vLLM.
    """
    if fields.stream and fields.prompt_logprobs:
        raise ParameterError("prompt_logprobs: only without stream=true", "prompt_logprobs")


def reports_without_effect(fields: TokenReportFields, *, logprobs: bool) -> list[str]:
    """The fields that were given and have no effect.

    Args:
        logprobs: whether the answer has log-probabilities.
    """
    effects = {
        "return_tokens_as_token_ids": logprobs or not fields.return_tokens_as_token_ids,
        "prompt_logprobs": fields.prompt_logprobs is None or not fields.stream,
    }
    return [name for name, effect in effects.items() if not effect]


def prompt_logprobs(prefill: Sequence[Token], alternatives: int) -> PromptLogprobs:
    """The reports of a prompt's tokens."""
    return [_position(token, token.top[:alternatives]) for token in prefill]


def name_of(token: TopToken, by_id: bool) -> str:
    """The name of a token in log-probabilities.

    Args:
        by_id: whether the client wants ids (`return_tokens_as_token_ids`).
    """
    return f"token_id:{token.id}" if by_id else token.text


def _position(token: Token, top: Sequence[TopToken]) -> dict[str, PromptLogprob] | None:
    own = token.alternative
    if own is None:
        return None
    places = {alternative.id: place for place, alternative in enumerate(top, 1)}
    logprobs = {str(own.id): PromptLogprob(own.logprob, places.get(own.id, token.rank), own.text)}
    for alternative in top:
        logprobs.setdefault(
            str(alternative.id), PromptLogprob(alternative.logprob, places[alternative.id], alternative.text)
        )
    return logprobs

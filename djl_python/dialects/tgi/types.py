"""The types of TGI's requests and answers, as they are read, written, and shown in /openapi.json.

Source: TGI 2.3.2's OpenAPI document; `json_object` and `json_schema` grammars as its later clients send them. Ranges
that are the same for every model are in the types; those that depend on its options are in `parameters`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...core.engine_info import EngineInfo
from ...core.types import FinishReason
from ..shared.fields.structured_output import JsonFormat, JsonObjectFormat, JsonSchemaFormat, RegexFormat

AboveZero = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
#: Bounds that are only shown: refusals are in the router's words, in its order.
_OneOrMore = Annotated[int, Meta(extra_json_schema={"minimum": 1})]
_ZeroOrMore = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Grammar = JsonFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat


class GenerateParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Generation parameters. do_sample switches sampling on, and so does a temperature, top_k, top_p or typical_p that
    is not neutral; a request without any `parameters` samples too."""

    adapter_id: Annotated[str | None, Meta(description="A LoRA adapter of the model.")] = None
    best_of: Annotated[_OneOrMore | None, Meta(description="Sequences to draw; the likeliest is answered with.")] = None
    decoder_input_details: Annotated[
        bool | None, Meta(description="Return the prompt's tokens too; implies details.")
    ] = None
    details: Annotated[bool | None, Meta(description="Return details; false by default.")] = None
    do_sample: Annotated[bool | None, Meta(description="Draw tokens instead of taking the likeliest.")] = None
    frequency_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None, Meta(description="Penalty for each time a token has been there.")
    ] = None
    grammar: Annotated[Grammar | None, Meta(description="What the text has to be an instance of.")] = None
    max_new_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens to generate at most; 100 by default.")
    ] = None
    repetition_penalty: Annotated[
        AboveZero | None, Meta(description="Penalty for tokens that have been there; 1: none.")
    ] = None
    return_full_text: Annotated[bool | None, Meta(description="Begin the text with the prompt.")] = None
    seed: Annotated[_ZeroOrMore | None, Meta(description="Of the random numbers, 0 to 2^64-1.")] = None
    stop: Annotated[
        list[Annotated[str, Meta(min_length=1)]] | None,
        Meta(description="Generation ends before the first of these texts."),
    ] = None
    temperature: Annotated[AboveZero | None, Meta(description="Below 1 more certain, above 1 more varied.")] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Draw from so many of the likeliest tokens.")
    ] = None
    top_n_tokens: Annotated[_ZeroOrMore | None, Meta(description="Alternatives to return with each token.")] = None
    top_p: Annotated[
        Share | None,
        Meta(description="Draw from the likeliest tokens that have this probability together; 1: from all."),
    ] = None
    truncate: Annotated[_OneOrMore | None, Meta(description="Keep so many of the prompt's last tokens.")] = None
    typical_p: Annotated[Share | None, Meta(description="Typical decoding's mass; 1: off.")] = None
    watermark: Annotated[bool | None, Meta(description="Accepted, without effect.")] = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text. `truncate` is the only parameter with an effect."""

    inputs: Annotated[str, Meta(description="The text.")]
    parameters: GenerateParameters | None = None
    model: Annotated[str | None, Meta(description="Not TGI's: which of several models answers.")] = None


class GenerateRequest(TokenizeRequest, frozen=True, kw_only=True):
    """A prompt and its generation parameters."""

    inputs: Annotated[str, Meta(description="The prompt, not empty.", extra_json_schema={"minLength": 1})]


class CompatGenerateRequest(GenerateRequest, frozen=True, kw_only=True):
    """A prompt, its generation parameters, and a flag for streaming."""

    stream: Annotated[bool | None, Meta(description="Answer with server-sent events.")] = None


# ------------------------------------------------------------------------------------------------ answers


class Token(msgspec.Struct, frozen=True):
    """A generated token, or an alternative to one."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(msgspec.Struct, frozen=True):
    """A token of the prompt; the first has no logprob."""

    id: int
    text: str
    logprob: float | None


class BestOfSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One of the drawn sequences other than the best."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a generation."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET
    top_tokens: list[list[Token]] | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is not streamed."""

    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream ended."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; the last also has `generated_text`, and `details` if the client asked for them."""

    index: int
    token: Token
    top_tokens: list[Token] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class SimpleToken(msgspec.Struct, frozen=True):
    """A token of a text: characters start to stop."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenizeResponse(msgspec.Struct, frozen=True):
    """The tokens of a chat, and the text that the model's chat template renders."""

    tokenize_response: list[SimpleToken]
    templated_text: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The model and its limits; `engine` is not TGI's."""

    model_id: str
    model_sha: str | None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None = None
    docker_label: str | None = None
    engine: EngineInfo

"""vLLM's /tokenize and /detokenize: the token ids of a prompt or a chat, and the text of token ids.

The routes are the front end's, answering runs in the worker. Source: vLLM's tokenize protocol. /tokenize belongs to
TGI's dialect, which leaves a body with `prompt` or `messages`, and without `inputs`, to OpenAI's.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...core.errors import ContextLengthError, ParameterError, PayloadError
from ...core.types import Chat
from ...formats.json_framing import JSON, encode_json
from ...inputs import Input
from ..shared.base import Answer, Kind, Route
from ..shared.chat.request import ChatRequest, read_chat
from ..shared.request_body import ignored_header, json_object
from ..shared.typed_body import read_body, unknown_fields
from ..shared.views import QueriedModel

TOKENIZE: Final = "tokenize"  # TGI's name of the operation: it is at the same path
DETOKENIZE: Final = "detokenize"
_TokenStrings = Annotated[bool, Meta(description="Return the tokens' entries in the vocabulary too.")] | None

_AddedToChat = Annotated[
    bool, Meta(description="Whether the tokenizer adds its own to those that the chat template writes.")
]


class TokenizePrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    model: str | None = None
    prompt: str
    add_special_tokens: Annotated[bool, Meta(description="Whether the tokenizer adds its own, such as BOS.")] = True
    return_token_strs: _TokenStrings = None


class _ChatTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request about a chat that requests for an answer don't have."""

    add_special_tokens: _AddedToChat = False
    return_token_strs: _TokenStrings = None


class TokenizeChat(ChatRequest, frozen=True, kw_only=True):
    """A chat, with the fields of /v1/chat/completions that its template reads."""

    add_special_tokens: _AddedToChat = False
    return_token_strs: _TokenStrings = None


class TokenIds(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a prompt."""

    count: int
    max_model_len: Annotated[int, Meta(description="Tokens of a prompt and its answer together, at most.")]
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0)]]


class DetokenizedPrompt(msgspec.Struct, frozen=True):
    """The text of the tokens, special ones included."""

    prompt: str


#: The part of /tokenize that is this dialect's.
SHARED_ROUTE: Final = Route(
    "POST",
    "/tokenize",
    TOKENIZE,
    Kind.QUERY,
    summary="The token ids of a prompt or a chat (vLLM's).",
    request=(TokenizePrompt, TokenizeChat),
    example={"prompt": "What is deep learning?"},
    responses={200: {JSON: TokenIds}},
)
ROUTE: Final = Route(
    "POST",
    "/detokenize",
    DETOKENIZE,
    Kind.QUERY,
    summary="The text of token ids.",
    request=DetokenizeRequest,
    example={"tokens": [1, 2]},
    responses={200: {JSON: DetokenizedPrompt}},
)


def answer_tokens(inputs: Input, model: QueriedModel) -> Answer:
    """The answer to either operation.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    body = json_object(inputs, model.config)
    if inputs.operation == DETOKENIZE:
        given = read_body(body, DetokenizeRequest, payload=("tokens",))
        ignored = unknown_fields(body, DetokenizeRequest, model.config)
        return _json(DetokenizedPrompt(model.decode(given.tokens, False, "tokens")), ignored)
    if body.get("messages") is None:
        return _of_prompt(body, model)
    if body.get("prompt") is not None:
        raise PayloadError("messages: not together with prompt", "messages")
    return _of_chat(body, model)


def _of_prompt(body: dict[str, Any], model: QueriedModel) -> Answer:
    fields = read_body(body, TokenizePrompt, payload=("prompt",))
    ignored = unknown_fields(body, TokenizePrompt, model.config)
    tokens = _tokens(
        fields.prompt, "prompt", model, special=fields.add_special_tokens, strings=fields.return_token_strs
    )
    return _json(tokens, ignored)


def _of_chat(body: dict[str, Any], model: QueriedModel) -> Answer:
    own = _ChatTokens.__struct_fields__
    fields = read_body({name: body[name] for name in own if name in body}, _ChatTokens)
    chat = read_chat({name: value for name, value in body.items() if name not in own}, model.config, must_fit=False)
    prompt = chat.request.prompt
    assert isinstance(prompt, Chat)
    if prompt.images:
        field = prompt.images[0].field
        raise ParameterError(f"{field}: the tokens of images are not listed, expected text", field)
    text = model.render(prompt)
    tokens = _tokens(text, "messages", model, special=fields.add_special_tokens, strings=fields.return_token_strs)
    return _json(tokens, chat.request.ignored)


def _tokens(text: str, field: str, model: QueriedModel, *, special: bool, strings: bool | None) -> TokenIds:
    try:
        ids = [token.id for token in model.tokenize(text, special)]
    except ContextLengthError as error:
        most = error.limit - 1
        raise ParameterError(
            f"{field}: {error.bound}{error.prompt_tokens} tokens, expected at most {most}, of which a list is given",
            field,
        ) from error
    entries = model.entries(ids) if strings else UNSET
    return TokenIds(count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=entries)


def _json(body: TokenIds | DetokenizedPrompt, ignored: Any) -> Answer:
    return Answer(200, encode_json(body), {"content-type": JSON, **ignored_header(ignored)})

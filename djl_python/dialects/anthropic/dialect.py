"""Anthropic's API: /v1/messages, and the count of a prompt's tokens.

Routes and errors run in the front end, parsing, queries and answering in the worker. A stream is server-sent events
with names. `anthropic-version` and `anthropic-beta` may be sent, and have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...config import TEXT_GENERATION, ModelConfig
from ...core.errors import ParameterError, ServingError
from ...formats.json_framing import JSON, SSE, encode_json
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, Parsed, Route
from ..shared.fields.named_model import named_model
from ..shared.fields.wants_stream import wants_stream
from ..shared.request_body import ignored_header, json_object
from ..shared.views import QueriedModel
from .answer import MessageFormatter
from .errors import DOCUMENTED, MessageError, anthropic_answer, error_event
from .request import MessagesRequest, PromptFields, read_messages, read_prompt
from .shapes import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    TokenCount,
)

MESSAGES: Final = "messages"
COUNT: Final = "count_tokens"
_EVENTS: Final = (
    *(MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop),
    *(Ping, MessageError),
)
_HEADERS: Final = {"anthropic-version": "Which version of the API the client knows: 2023-06-01. Not needed."}
_CHAT: Final = [{"role": "user", "content": "What is deep learning?"}]


class AnthropicDialect(Dialect):
    """Anthropic's messages."""

    name = "anthropic"
    summary = "Anthropic's API: messages."
    routes = (
        Route(
            "POST",
            "/v1/messages",
            MESSAGES,
            summary="Answer a chat with a message.",
            request=MessagesRequest,
            example={"model": "demo", "max_tokens": 64, "messages": _CHAT},
            headers=_HEADERS,
            responses={200: {JSON: Message, SSE: _EVENTS}},
        ),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            COUNT,
            Kind.QUERY,
            summary="Count the tokens of a prompt.",
            request=PromptFields,
            example={"model": "demo", "messages": _CHAT},
            headers=_HEADERS,
            responses={200: {JSON: TokenCount}},
        ),
    )
    model_field = "model"
    errors: ClassVar[Mapping[int, Bodies]] = DOCUMENTED

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request for a message."""
        if inputs.operation != MESSAGES:
            raise self.wrong_task(TEXT_GENERATION, model)
        parsed = read_messages(json_object(inputs, model), model)
        formatter = MessageFormatter(
            stream=bool(parsed.fields.stream),
            model=parsed.request.adapter or model.name,
            headers=ignored_header(parsed.request.ignored),
        )
        return Parsed((parsed.request,), formatter)

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """The number of a prompt's tokens."""
        chat, ignored = read_prompt(json_object(inputs, model.config), model.config)
        if chat.images:
            field = chat.images[0].field
            raise ParameterError(f"{field}: the tokens of images are not counted, expected text", field)
        tokens = model.tokenize(model.render(chat), add_special_tokens=False)  # the template has added them
        headers: dict[str, Any] = {"content-type": JSON, **ignored_header(ignored)}
        return Answer(200, encode_json(TokenCount(len(tokens))), headers)

    def model_of(self, body: bytes) -> str | None:
        return named_model(body)

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        return anthropic_answer(error)

    def waiting_stream(self, operation: str, body: bytes, model: ModelConfig) -> Mapping[str, str] | None:
        return {"content-type": f"{SSE}; charset=utf-8"} if operation == MESSAGES and wants_stream(body) else None

    def late_error(self, body: bytes) -> bytes:
        return b"event: error\n" + super().late_error(body)

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return error_event(error)

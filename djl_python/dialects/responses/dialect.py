"""OpenAI's Responses API: /v1/responses.

Routes and errors run in the front end, parsing and answering in the worker. A stream is server-sent events with names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from ...config import TEXT_GENERATION, Checkpoint, ModelConfig
from ...core import budgets
from ...core.errors import PayloadError, ServingError
from ...core.types import Chat
from ...formats.json_framing import JSON, SSE, encode_json
from ...formats.json_size import values_in
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, Parsed, Route
from ..shared.fields.named_model import named_model
from ..shared.openai import responses as kept
from ..shared.request_body import ignored_header, json_object
from ..shared.views import QueriedModel
from .answer import ResponseFormatter
from .errors import DOCUMENTED, PREVIOUS, UnsupportedError, error_event, response_error_answer
from .events import EVENTS, encode_event
from .request import Context, ResponsesRequest, read_response
from .shapes import InputTokens, ResponseObject

CREATE: Final = "create_response"
COUNT: Final = "count_input_tokens"
#: The number of an error's event where the numbers of the events before it are not known: clients drop lower ones.
_LAST: Final = 2**31 - 1


def _kept(method: str, path: str, operation: str, summary: str, shape: Any, **more: Any) -> Route:
    where = f"/v1/responses/{{response_id}}{path}"
    return Route(method, where, operation, Kind.KEPT, summary, responses={200: {JSON: shape}}, **more)


class ResponsesDialect(Dialect):
    """OpenAI's responses."""

    name = "responses"
    summary = "OpenAI's Responses API."
    routes = (
        Route(
            "POST",
            "/v1/responses",
            CREATE,
            summary="Create a response.",
            request=ResponsesRequest,
            example={"input": "What is deep learning?"},
            responses={200: {JSON: ResponseObject, SSE: EVENTS}},
        ),
        Route(
            "POST",
            "/v1/responses/input_tokens",
            COUNT,
            Kind.QUERY,
            summary="Count the tokens of an input.",
            request=ResponsesRequest,
            example={"input": "What is deep learning?"},
            responses={200: {JSON: InputTokens}},
        ),
        Route(
            *("GET", "/v1/responses/{response_id}", kept.RETRIEVE, Kind.KEPT),
            summary="A kept response, or the events of a background response.",
            query=kept.ResponseQuery,
            responses={200: {JSON: ResponseObject, SSE: EVENTS}},
        ),
        _kept("DELETE", "", kept.DELETE, "Delete a response.", kept.ResponseDeleted),
        _kept("POST", "/cancel", kept.CANCEL, "Cancel a background response.", ResponseObject),
        _kept(
            *("GET", "/input_items", kept.INPUT_ITEMS, "The input items of a response.", kept.InputItemList),
            query=kept.InputItemsQuery,
        ),
    )
    model_field = "model"
    keeps = CREATE
    errors: ClassVar[Mapping[int, Bodies]] = DOCUMENTED

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request for a response."""
        if inputs.operation != CREATE:
            raise self.wrong_task(TEXT_GENERATION, model)
        parsed = read_response(json_object(inputs, model), _context(inputs, model), model)
        name, headers = parsed.request.adapter or model.name, ignored_header(parsed.request.ignored)
        return Parsed((parsed.request,), ResponseFormatter(parsed, model=name, headers=headers))

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """The number of an input's tokens."""
        parsed = read_response(json_object(inputs, model.config), None, model.config)
        chat = parsed.request.prompt
        assert isinstance(chat, Chat)
        if chat.images:
            field = chat.images[0].field
            raise UnsupportedError(f"{field}: the tokens of images are not counted", field, "unsupported_value")
        tokens = model.tokenize(model.render(chat), add_special_tokens=False)  # the template has added them
        headers: dict[str, Any] = {"content-type": JSON, **ignored_header(parsed.request.ignored)}
        return Answer(200, encode_json(InputTokens(input_tokens=len(tokens))), headers)

    def queued(self, body: bytes, context: bytes, model: ModelConfig) -> bytes:
        """The response before a worker has its request."""
        inputs = Input()
        inputs.body, inputs.context = body, context
        inputs.content.add("data", body)
        # The worker, which knows the checkpoint, refuses images where the model takes none.
        anything = msgspec.structs.replace(model, checkpoint=Checkpoint(takes_images=True))
        parsed = read_response(json_object(inputs, model), _context(inputs, model), anything)
        return ResponseFormatter(parsed, model=parsed.request.adapter or model.name, headers={}).queued()

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
        return response_error_answer(error)

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return encode_event(error_event(error, _LAST))


def _context(inputs: Input, model: ModelConfig) -> Context | None:
    """What the front end knows of the request; earlier responses may have as many values as a body.

    Raises:
        PayloadError: they have more.
    """
    if not inputs.context:
        return None
    limit = budgets.VALUES._replace(most=model.option.max_request_values)
    if wrong := limit.excess(values_in(inputs.context, limit.most), at_least=True):
        raise PayloadError(f"{PREVIOUS}: of the responses before this one, {wrong}", PREVIOUS)
    return msgspec.json.decode(inputs.context, type=Context)

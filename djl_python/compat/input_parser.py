"""`@input_formatter` and its siblings: functions of a `model.py` that a built-in handler calls; and DJL's own parser.

Runs in the worker. Source: LMI's "Custom input formatter schema", and its pages about the handlers for scikit-learn and
XGBoost. `parse_input_with_formatter` is for handlers that generate by themselves.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..chat_completions.chat_utils import is_chat_completions_request, parse_chat_completions_request
from ..core.errors import HandlerError, ModelLoadError, PayloadError, ServingError
from ..core.names import did_you_mean
from ..inputs import Input
from ..properties_manager.properties import is_rolling_batch_enabled
from .encode_decode import decode
from .output_formatter import annotation_name, mark
from .request import Request
from .request_io import RequestInput, TextInput

__all__ = [
    "ParsedInput",
    "adapt_input_formatter",
    "format_input",
    "init_handler",
    "input_formatter",
    "parse_adapters",
    "parse_input_with_formatter",
    "prediction_handler",
]

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)

_PAYLOAD_NAMES = ("decoded_payload", "payload")


def input_formatter(function: F) -> F:
    """Mark a function of a `model.py` as the one that reads the built-in handler's requests.

    LMI's two forms; `**kwargs` has `tokenizer`, `configs` and whatever else the handler passes:

        @input_formatter
        def custom(input_item: Input, **kwargs) -> RequestInput: ...

        @input_formatter
        def custom(decoded_payload: dict, tokenizer=None, **kwargs) -> dict: ...

    The second is recognised by its parameter: annotated as a dict, or named decoded_payload.
    """
    return mark(function, "input_formatter")


def prediction_handler(function: F) -> F:
    """Mark the function of a `model.py` that predicts, for DJL's scikit-learn and XGBoost handlers.

    @prediction_handler
    def predict(X, model, **kwargs): ...
    """
    return mark(function, "prediction_handler")


def init_handler(function: F) -> F:
    """Mark the function of a `model.py` that loads the model, for DJL's scikit-learn and XGBoost handlers.

    @init_handler
    def load(model_dir, **kwargs): ...
    """
    return mark(function, "init_handler")


def adapt_input_formatter(function: Callable[..., Any]) -> Callable[..., RequestInput | dict[str, Any]]:
    """Wrap a decorated function of either form as `formatted(inputs, payload, **attributes)`.

    `payload(inputs)` decodes the body, for a function that takes a payload. Attributes that the function does not take
    are left out. The result is a RequestInput, or the payload that the dialect of the call is to parse.

    Raises:
        ModelLoadError: the function takes no parameter.
        HandlerError (when called): the function returned neither.
        PayloadError (when called): the function wants a decoded payload, and the body is not a JSON object.
    """
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not positional:
        raise ModelLoadError(f"@input_formatter {function.__name__}: expected a first parameter (input_item)")
    takes_payload = _takes_payload(positional[0])
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = {p.name for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def formatted(
        inputs: Input, payload: Callable[[Input], Any], /, **attributes: Any
    ) -> RequestInput | dict[str, Any]:
        item: Any = inputs
        if takes_payload:
            item = payload(inputs)
            if not isinstance(item, dict):
                raise PayloadError(f"the request body: expected a JSON object, found {type(item).__name__}")
        kept = attributes if takes_all else {name: attributes[name] for name in accepted & attributes.keys()}
        result = function(item, **kept)
        if isinstance(result, RequestInput | dict):
            return result
        raise HandlerError(
            f"@input_formatter {function.__name__} returned {type(result).__name__}, expected RequestInput or dict"
        )

    return formatted


def _takes_payload(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.name in _PAYLOAD_NAMES
    return annotation_name(parameter.annotation) in ("dict", "Dict", "Mapping", "MutableMapping")


@dataclass
class ParsedInput:
    """The calls of a batch as requests.

    Attributes:
        errors: index of a call -> why it is no request.
        requests: of the other calls, in order.
        batch: all calls.
    """

    errors: dict[int, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    batch: list[Input] = field(default_factory=list)


def parse_input_with_formatter(inputs: Input, **kwargs: Any) -> ParsedInput:
    """Read the calls of a batch as LMI's requests to generate text.

    Args:
        kwargs: attributes of the user's handler: `configs` (a `Properties`, required), `tokenizer`, `rolling_batch`;
            `configs.input_formatter` is a function that reads a call instead, with these attributes.
    """
    configs = kwargs["configs"]
    counter = kwargs["rolling_batch"].req_id_counter if is_rolling_batch_enabled(configs.rolling_batch) else None
    parsed = ParsedInput(batch=inputs.get_batches())
    for index, call in enumerate(parsed.batch):
        request_id = index if counter is None else counter.next_id()
        try:
            parsed.requests.append(Request(_read(call, request_id, kwargs)))
        except (ServingError, ValueError, LookupError, TypeError, AttributeError) as exc:  # of one call alone
            what = f"no {exc}" if isinstance(exc, KeyError) else str(exc)
            parsed.errors[index] = f"Input Parsing failed. Ensure that the request payload is valid. {what}"
            log.warning("%s", parsed.errors[index], exc_info=not isinstance(exc, ServingError))
    return parsed


def _read(call: Input, request_id: int, attributes: dict[str, Any]) -> TextInput:
    configs = attributes["configs"]
    if callable(configs.input_formatter):
        made = configs.input_formatter(call, **attributes)
        if not isinstance(made, TextInput):
            raise TypeError(f"the input formatter returned {type(made).__name__}, expected TextInput")
        made.request_id = request_id
        made.server_parameters = made.server_parameters or dict(made.parameters)
        return made
    request_input = TextInput(
        request_id=request_id, tokenizer=attributes.get("tokenizer"), tgi_compat=configs.tgi_compat
    )
    format_input(request_input, call, **attributes)
    return request_input


def format_input(request_input: TextInput, input_item: Input, **kwargs: Any) -> None:
    """Fill `request_input` with a call's text, parameters and formatter.

    Args:
        kwargs: as in `parse_input_with_formatter`.

    Raises:
        PayloadError, ValueError: the body is not LMI's.
    """
    configs, tokenizer = kwargs["configs"], kwargs.get("tokenizer")
    rolling = is_rolling_batch_enabled(configs.rolling_batch)
    body = decode(input_item, input_item.get_property("content-type"))
    if not isinstance(body, dict):
        body = {"inputs": body}
    if is_chat_completions_request(body):
        text, parameters = parse_chat_completions_request(body, rolling, tokenizer, configs=configs)
        request_input.input_text = text
    else:
        parameters = dict(body.pop("parameters", None) or {})
        stream = body.pop("stream", None)
        if rolling and stream is not None:
            parameters["stream"] = stream
        request_input.input_text = body.pop("inputs", body)
    request_input.parameters = parameters
    if tokenizer is not None and isinstance(request_input.input_text, str):
        request_input.input_ids = tokenizer.encode(request_input.input_text)
    request_input.output_formatter = parameters.get("output_formatter") or configs.output_formatter
    request_input.server_parameters = dict(parameters)
    parse_adapters(request_input, input_item, body, **kwargs)


def parse_adapters(request_input: TextInput, input_item: Input, input_map: dict[str, Any], **kwargs: Any) -> None:
    """Set `request_input.adapters` to what is registered under the names that a call gives: one, or one for each text.

    The names are in the body's `adapters`, which is taken out of it, the content `adapter`, or the property `adapter`,
    the last of them that is there. None stands for the base model.

    Args:
        input_map: the call's body, decoded.
        kwargs: `adapter_registry`, adapters by name; without one, or of an empty one, there is nothing to do.

    Raises:
        ValueError: a name is not registered, or the number of names is not that of the texts.
    """
    registry = kwargs.get("adapter_registry")
    if not registry:
        return
    texts = len(request_input.input_text) if isinstance(request_input.input_text, list) else 1
    names = input_map.pop("adapters", None)
    if input_item.contains_key("adapter"):
        names = input_item.get_as_string("adapter")
    names = input_item.get_properties().get("adapter", names)
    if not isinstance(names, list):
        names = [names]
    if not any(names):
        names = [""] * texts
    for name in names:
        if name and name not in registry:
            raise ValueError(f"Adapter {name} is not registered{did_you_mean(str(name), registry)}")
    if len(names) != texts:
        raise ValueError(f"adapters: expected as many as there are inputs, {texts}, got {len(names)}")
    adapters = [registry.get(name) for name in names]
    request_input.adapters = adapters if isinstance(request_input.input_text, list) and texts > 1 else adapters[0]

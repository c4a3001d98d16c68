"""The `@input_formatter` decorator: a function of a `model.py` that reads requests for the built-in handler.

Runs in the worker. Source: LMI's "Custom input formatter schema".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .core.errors import HandlerError, ModelLoadError, PayloadError
from .inputs import Input
from .output_formatter import mark
from .request_io import RequestInput

__all__ = ["adapt_input_formatter", "input_formatter"]

F = TypeVar("F", bound=Callable[..., Any])

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
    # Under `from __future__ import annotations` an annotation is text.
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return parameter.name in _PAYLOAD_NAMES
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.rpartition(".")[2].partition("[")[0] in ("dict", "Dict", "Mapping", "MutableMapping")

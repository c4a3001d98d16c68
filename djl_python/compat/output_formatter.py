"""`@output_formatter`: what LMI documents for a `model.py` that shapes the answers of the built-in handler.

Runs in the worker. A `model.py` imports the decorator from here, and the types that its function is given, which are
those of `request_io`. DJL's own formatters, by its names, are for handlers that generate by themselves.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

from ..core.errors import HandlerError, ModelLoadError
from ..formats.json_framing import JSON, JSONLINES, SSE
from ..usercode.token_answers import json_answer as _json_output_formatter
from ..usercode.token_answers import json_chat_answer as _json_chat_output_formatter
from ..usercode.token_answers import jsonlines_answer as _jsonlines_output_formatter
from ..usercode.token_answers import jsonlines_chat_answer as _jsonlines_chat_output_formatter
from ..usercode.token_answers import sse_answer as sse_response_formatter
from .request_io import RequestInput, RequestOutput, Sequence, TextGenerationOutput, TextInput, Token

__all__ = [
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "adapt_legacy_output_formatter",
    "adapt_output_formatter",
    "adapt_response_formatter",
    "find_decorated",
    "get_output_formatter",
    "output_formatter",
    "sse_response_formatter",
    "takes_responses",
    "takes_tokens_one_by_one",
]

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)

_MARK: Final = "__djl_formatter__"
_LEGACY_PARAMETERS: Final = 6
_RESPONSE_TYPES: Final = ("dict", "Dict", "Mapping", "MutableMapping")
#: Names of a parameter without annotation that can only be a whole response.
_RESPONSE_NAMES: Final = ("response", "response_data")


def output_formatter(function: F) -> F:
    """Mark a function of a `model.py` as the one that shapes the built-in handler's answers.

    LMI's three forms. With the response as a dict, or in a stream each of its chunks, recognised by the annotation:

        @output_formatter
        def custom(response_data: dict) -> dict: ...

    called once for each token:

        @output_formatter
        def custom(request_output: TextGenerationOutput) -> str: ...

    and the oldest, recognised by its six parameters:

        @output_formatter
        def custom(token, first_token, last_token, details, generated_text, id) -> str: ...
    """
    return mark(function, "output_formatter")


def mark(function: F, decorator: str) -> F:
    """Record on `function` that it carries `decorator`."""
    setattr(function, _MARK, decorator)
    return function


def find_decorated(module: ModuleType, decorator: str) -> Callable[..., Any] | None:
    """The function of `module` that carries `decorator` ("output_formatter" or "input_formatter"), or None.

    Raises:
        ModelLoadError: several do.
    """
    marked = (value for value in vars(module).values() if getattr(value, _MARK, None) == decorator)
    functions = {id(value): value for value in marked if inspect.isroutine(value)}
    if len(functions) > 1:
        names = ", ".join(value.__name__ for value in functions.values())
        raise ModelLoadError(f"{module.__name__}: several functions have @{decorator}: {names}")
    return next(iter(functions.values()), None)


def takes_responses(function: Callable[..., Any], *, unless_annotated: bool = False) -> bool:
    """Whether a decorated function takes the response as a dict.

    Its annotations say so: that of its parameter, else that of its result; without any, `unless_annotated` is the
    answer, except for a parameter that is named as LMI's documents name a response.
    """
    signature = inspect.signature(function)
    if _required_parameters(function) != 1:
        return False
    first = next(iter(signature.parameters.values()))
    for annotation in (first.annotation, signature.return_annotation):
        if annotation is not inspect.Signature.empty:
            return annotation_name(annotation) in _RESPONSE_TYPES
    return unless_annotated or first.name in _RESPONSE_NAMES


def takes_tokens_one_by_one(function: Callable[..., Any]) -> bool:
    """Whether a function takes a `TextGenerationOutput`, not the six parameters of the oldest form."""
    return _required_parameters(function) < _LEGACY_PARAMETERS


def annotation_name(annotation: Any) -> str:
    """`Dict` of the annotations Dict, typing.Dict[str, Any], "Dict" and "typing.Dict[str, Any]"."""
    # Under `from __future__ import annotations` an annotation is text.
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.partition("[")[0].rpartition(".")[2]


def adapt_response_formatter(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Wrap a decorated function that takes responses: what it returns is checked.

    Raises:
        HandlerError (when called): the function returned neither a dict nor text.
    """

    def formatted(response: Any) -> Any:
        result = function(response)
        if isinstance(result, dict | list | str | bytes):
            return result
        raise HandlerError(f"@output_formatter {function.__name__} returned {type(result).__name__}, expected dict")

    return formatted


def adapt_output_formatter(function: Callable[..., Any]) -> Callable[[TextGenerationOutput], bytes]:
    """Wrap a decorated function that is called for each token as a function from the request's output to bytes.

    Call the result once for each token of the best sequence, when that token is ready to be read.

    Raises:
        ModelLoadError: the function has none of the documented forms.
        HandlerError (when called): the function returned neither str nor bytes.
    """
    required = _required_parameters(function)
    if required == 1:
        call = function
    elif required == _LEGACY_PARAMETERS:
        call = _legacy(function)
    else:
        raise ModelLoadError(
            f"@output_formatter {function.__name__}: expected one parameter (request_output) or six (token, "
            f"first_token, last_token, details, generated_text, id), found {required}"
        )

    def formatted(output: TextGenerationOutput) -> bytes:
        result = call(output)
        if isinstance(result, str):
            return result.encode()
        if isinstance(result, bytes | bytearray):
            return bytes(result)
        raise HandlerError(f"@output_formatter {function.__name__} returned {type(result).__name__}, expected str")

    return formatted


def _required_parameters(function: Callable[..., Any]) -> int:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def adapt_legacy_output_formatter(request_output: TextGenerationOutput) -> Any:
    """Call the six-parameter function in `request_output.input.output_formatter` for each token not yet read.

    Raises:
        TypeError: there is no function.
    """
    function = request_output.input.output_formatter
    if not callable(function):
        raise TypeError(f"the request's output formatter is {function!r}, expected a function")
    return _legacy(function)(request_output)


#: What option.output_formatter may say -> DJL's function for it, and the content type of its answers.
_FORMATTERS: Final[dict[str, tuple[Callable[[TextGenerationOutput], str], str]]] = {
    "json": (_json_output_formatter, JSON),
    "jsonlines": (_jsonlines_output_formatter, JSONLINES),
    "sse": (sse_response_formatter, SSE),
    "json_chat": (_json_chat_output_formatter, JSON),
    "jsonlines_chat": (_jsonlines_chat_output_formatter, JSONLINES),
}


def get_output_formatter(
    output_formatter: Callable[..., Any] | str | None, stream: bool, tgi_compat: bool
) -> tuple[Callable[..., Any], str | None]:
    """The function that shapes a request's answer, and the answer's content type (None for one of the user's).

    Without a name it is json's, or in a stream jsonlines' or, for TGI's clients, sse's.
    """
    if callable(output_formatter):
        return output_formatter, None
    if output_formatter is not None and output_formatter not in _FORMATTERS:
        log.warning("there is no output formatter %r: expected one of %s", output_formatter, ", ".join(_FORMATTERS))
    default = ("sse" if tgi_compat else "jsonlines") if stream else "json"
    return _FORMATTERS.get(output_formatter or default, _FORMATTERS[default])


def _legacy(function: Callable[..., Any]) -> Callable[[TextGenerationOutput], Any]:
    def call(output: TextGenerationOutput) -> Any:
        sequence = output.sequences[output.best_sequence_index]
        pieces: list[Any] = []
        while sequence.has_next_token():
            token, first, last = sequence.get_next_token()
            details: dict[str, Any] = {}
            if output.input.parameters.get("details"):
                details = {
                    "finish_reason": sequence.finish_reason,
                    "tokens": output.get_tokens_as_dict(output.best_sequence_index),
                    "generated_tokens": len(sequence.tokens),
                    "inputs": output.prompt_text,
                    "parameters": output.input.parameters,
                }
            text = output.text if last else ""
            pieces.append(function(token, first, last, details, text, output.request_id))
        if all(isinstance(piece, str) for piece in pieces):
            return "".join(pieces)
        return next(piece for piece in pieces if not isinstance(piece, str))

    return call

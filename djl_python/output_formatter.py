"""`@output_formatter`: what LMI documents for a `model.py` that shapes the answers of the built-in handler.

Runs in the worker. A `model.py` imports the decorator from here, and the types that its function is given, which are
those of `request_io`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

from .core.errors import HandlerError, ModelLoadError
from .request_io import RequestInput, RequestOutput, Sequence, TextGenerationOutput, TextInput, Token

__all__ = [
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "adapt_output_formatter",
    "find_decorated",
    "output_formatter",
]

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__djl_formatter__"
_LEGACY_PARAMETERS: Final = 6


def output_formatter(function: F) -> F:
    """Mark a function of a `model.py` as the one that shapes the built-in handler's answers.

    LMI's form, called once for each token:

        @output_formatter
        def custom(request_output: TextGenerationOutput) -> str: ...

    and the older one, recognised by its six parameters:

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
    found = {id(value): value for value in marked if inspect.isroutine(value)}
    if len(found) > 1:
        names = ", ".join(value.__name__ for value in found.values())
        raise ModelLoadError(f"{module.__name__}: several functions have @{decorator}: {names}")
    return next(iter(found.values()), None)


def adapt_output_formatter(function: Callable[..., Any]) -> Callable[[TextGenerationOutput], bytes]:
    """Wrap a decorated function of either form as a function from the request's output to bytes.

    Call the result once for each token of the best sequence, when that token is ready to be read.

    Raises:
        ModelLoadError: the function has neither of the documented forms.
        HandlerError (when called): the function returned neither str nor bytes.
    """
    required = _required_parameters(function)
    if required == 1:
        call = function
    elif required == _LEGACY_PARAMETERS:
        call = _adapt_legacy(function)
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


def _adapt_legacy(function: Callable[..., Any]) -> Callable[[TextGenerationOutput], Any]:
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

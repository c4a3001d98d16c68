"""The user's own functions around the built-in handler: `@input_formatter` and `@output_formatter`.

They are in a model.py, or in the module that option.entryPoint names. Runs in the worker: the input formatter in the
thread for the user's code, one call after the other, because it may be slow; the output formatter in the event loop,
once for each token, or once for a response or a chunk of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from djl_python.config import ModelConfig
from djl_python.config.loading import ASYNC_HANDLERS
from djl_python.core.errors import PayloadError
from djl_python.dialects.shared.base import Dialect, Formatter, Parsed
from djl_python.dialects.shared.custom import CustomFormatter, ResponseFormatter
from djl_python.input_parser import adapt_input_formatter
from djl_python.inputs import Input
from djl_python.output_formatter import (
    adapt_output_formatter,
    adapt_response_formatter,
    find_decorated,
    takes_responses,
)
from djl_python.request_io import RequestInput, TextInput
from djl_python.usercode.module import user_modules

from .user_tokenizer import UserTokenizer

_QUESTION: Final = "What is deep learning?"

ReadInput = Callable[..., RequestInput | dict[str, Any]]
#: Makes an answer's formatter of the parsed request, the call, and what the user's input formatter made of it.
Write = Callable[[Parsed, Input, RequestInput | None], Formatter]


class UserFormatters:
    """The formatters of the first of `user_modules` that has any. Importing it may be slow.

    Args:
        path: the checkpoint's directory.
        run: a `Context.run`.
    """

    def __init__(self, config: ModelConfig, path: Path, run: Callable[..., Awaitable[Any]]) -> None:
        self._config = config
        self._run = run
        tokenizer = UserTokenizer(path, trust_remote_code=config.option.trust_remote_code)
        self._attributes = {"tokenizer": tokenizer, "configs": config.option}
        self._read: ReadInput | None = None
        self._write: Write | None = None
        for module in user_modules(config):
            self._take(module)
            if self._read is not None or self._write is not None:
                break

    def know(self, config: ModelConfig) -> None:
        """Tell them the model's configuration with what only the loaded model says."""
        self._config = config

    def example(self, *, chat: bool) -> dict[str, Any] | None:
        """A body that the model answers, a `chat` where it has a template; None: the user's input formatter knows."""
        if self._read is not None:
            return None
        if chat:
            return {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64}
        return {"inputs": _QUESTION, "parameters": {"max_new_tokens": 64}}

    def _take(self, module: ModuleType) -> None:
        if (function := find_decorated(module, "input_formatter")) is not None:
            self._read = adapt_input_formatter(function)
        if (function := find_decorated(module, "output_formatter")) is not None:
            self._write = self._writer(function)

    def _writer(self, function: Callable[..., Any]) -> Write:
        """What puts a decorated function around the dialect's formatter.

        Raises:
            ModelLoadError: the function has none of the documented forms.
        """
        if takes_responses(function, unless_annotated=_is_asynchronous(self._config)):
            reshape = adapt_response_formatter(function)
            return lambda parsed, inputs, made: ResponseFormatter(reshape, parsed.formatter)
        shape = adapt_output_formatter(function)
        return lambda parsed, inputs, made: CustomFormatter(
            *(shape, parsed.formatter, parsed.requests, _client_parameters(inputs)),
            tgi_compat=self._config.option.tgi_compat,
            source=made,
        )

    async def parse(self, api: Dialect, inputs: Input) -> tuple[Parsed, Input]:
        """Parse a request with its dialect, after the user's input formatter.

        The function returns a payload of the call's API, or a RequestInput, which stands for an LMI payload.

        Returns:
            The parsed request, and the call as the dialect has read it: with that payload, if there is one.

        Raises:
            PayloadError, ParameterError: as from the dialect.
            HandlerError: the function returned something else.
            Exception: the function raised it.
        """
        if self._read is None:
            parsed = api.parse(inputs, self._config)
            return _written(parsed, inputs, self._write, None), inputs
        made = await self._run((inputs,), self._read, inputs, api.payload, **self._attributes)
        if isinstance(made, dict):
            inputs = api.with_payload(inputs, made)
            return _written(api.parse(inputs, self._config), inputs, self._write, None), inputs
        inputs = api.with_payload(inputs, _payload(made, inputs))
        parsed = api.parse(inputs, self._config)
        if isinstance(made, TextInput) and made.input_ids:
            first = msgspec.structs.replace(parsed.requests[0], prompt=tuple(made.input_ids))
            parsed = Parsed((first, *parsed.requests[1:]), parsed.formatter)
        write = self._writer(made.output_formatter) if callable(made.output_formatter) else self._write
        return _written(parsed, inputs, write, made), inputs


def _is_asynchronous(config: ModelConfig) -> bool:
    """Whether the model is one of LMI's asynchronous handlers, which give formatters whole responses."""
    return config.option.async_mode or config.option.entry_point in ASYNC_HANDLERS


def _written(parsed: Parsed, inputs: Input, write: Write | None, made: RequestInput | None) -> Parsed:
    return parsed if write is None else Parsed(parsed.requests, write(parsed, inputs, made))


def _payload(made: RequestInput, inputs: Input) -> dict[str, Any]:
    """The LMI payload for the RequestInput that the user's function returned."""
    parameters = dict(made.parameters)
    if isinstance(made.output_formatter, str):
        parameters["output_formatter"] = made.output_formatter
    text = made.input_text if isinstance(made, TextInput) else None
    if not text and isinstance(made, TextInput) and made.input_ids:
        text = " "  # a placeholder: `parse` puts the ids in its place
    payload: dict[str, Any] = {"inputs": text, "parameters": parameters}
    if isinstance(made, TextInput) and made.adapters:
        payload["adapters"] = made.adapters
    stream = parameters.pop("stream", None)
    if stream is None:
        stream = _body(inputs).get("stream")
    return payload if stream is None else {**payload, "stream": stream}


def _client_parameters(inputs: Input) -> Mapping[str, Any]:
    parameters = _body(inputs).get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _body(inputs: Input) -> dict[str, Any]:
    try:
        body = inputs.get_as_json()
    except PayloadError:  # a dialect may take bodies that are not JSON
        return {}
    return body if isinstance(body, dict) else {}

"""The user's own functions around the built-in handler: `@input_formatter` and `@output_formatter`.

They are in a model.py, or in the module that option.entryPoint names. Runs in the worker: the input formatter in the
thread for the user's code, one call after the other, because it may be slow; the output formatter in the event loop,
once for each token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from djl_python.config import ModelConfig
from djl_python.core.errors import PayloadError
from djl_python.dialects.shared.base import Dialect, Formatter, Parsed
from djl_python.dialects.shared.custom import CustomFormatter, Shape
from djl_python.input_parser import adapt_input_formatter
from djl_python.inputs import Input
from djl_python.output_formatter import adapt_output_formatter, find_decorated
from djl_python.request_io import RequestInput, TextInput
from djl_python.usercode.module import user_modules

from .user_tokenizer import UserTokenizer

ReadInput = Callable[..., RequestInput | dict[str, Any]]


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
        self._shape: Shape | None = None
        for module in user_modules(config):
            self._take(module)
            if self._read is not None or self._shape is not None:
                break

    def _take(self, module: ModuleType) -> None:
        if (function := find_decorated(module, "input_formatter")) is not None:
            self._read = adapt_input_formatter(function)
        if (function := find_decorated(module, "output_formatter")) is not None:
            self._shape = adapt_output_formatter(function)

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
            return self._shaped(parsed, inputs, self._shape, None), inputs
        made = await self._run((inputs,), self._read, inputs, api.payload, **self._attributes)
        if isinstance(made, dict):
            inputs = api.with_payload(inputs, made)
            return self._shaped(api.parse(inputs, self._config), inputs, self._shape, None), inputs
        inputs = api.with_payload(inputs, _payload(made, inputs))
        parsed = api.parse(inputs, self._config)
        if isinstance(made, TextInput) and made.input_ids:
            first = msgspec.structs.replace(parsed.requests[0], prompt=tuple(made.input_ids))
            parsed = Parsed((first, *parsed.requests[1:]), parsed.formatter)
        shape = adapt_output_formatter(made.output_formatter) if callable(made.output_formatter) else self._shape
        return self._shaped(parsed, inputs, shape, made), inputs

    def _shaped(self, parsed: Parsed, inputs: Input, shape: Shape | None, made: RequestInput | None) -> Parsed:
        if shape is None:
            return parsed
        formatter: Formatter = CustomFormatter(
            shape,
            parsed.formatter,
            parsed.requests,
            _client_parameters(inputs),
            tgi_compat=self._config.option.tgi_compat,
            source=made,
        )
        return Parsed(parsed.requests, formatter)


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
        payload["adapters"] = made.adapters  # for the dialect to refuse
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

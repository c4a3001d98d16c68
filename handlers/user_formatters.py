"""The user's own functions around the built-in handler: `@input_formatter` and `@output_formatter`.

They are in a model.py, or in the module that option.entryPoint names; an adapter's own, in a model.py of its directory,
stand in their place for requests that name the adapter. Runs in the worker: the input formatter in the thread for the
user's code, one call after the other, because it may be slow; the output formatter in the event loop, once for each
token, or once for a response or a chunk of it. Large bodies are parsed in a thread (`large_bodies`).
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from djl_python.compat.input_parser import adapt_input_formatter
from djl_python.compat.output_formatter import (
    adapt_output_formatter,
    adapt_response_formatter,
    find_decorated,
    takes_responses,
)
from djl_python.compat.request_io import RequestInput, TextInput
from djl_python.config import ModelConfig
from djl_python.config.loading import ASYNC_HANDLERS
from djl_python.core.errors import ParameterError, PayloadError
from djl_python.dialects.shared.base import Dialect, Formatter, Parsed
from djl_python.dialects.shared.custom import CustomFormatter, ResponseFormatter
from djl_python.inputs import Input
from djl_python.usercode.adapter_module import adapter_file, code_fault, forget_module, load_adapter_module
from djl_python.usercode.module import user_modules

from .calls import size_of
from .large_bodies import LargeBodies
from .user_tokenizer import UserTokenizer

log = logging.getLogger(__name__)

_QUESTION: Final = "What is deep learning?"

ReadInput = Callable[..., RequestInput | dict[str, Any]]
#: Makes an answer's formatter of the parsed request, the call, and what the user's input formatter made of it.
Write = Callable[[Parsed, Input, RequestInput | None], Formatter]


@dataclass(frozen=True)
class Formatters:
    """The decorated functions of one module, adapted; None: the module has no such function.

    Attributes:
        names_tokenizer: whether the module has that name. Functions that they call may be the ones that use it:
            `**kwargs` are passed on.
    """

    module: ModuleType
    read: ReadInput | None
    write: Write | None
    names_tokenizer: bool

    @property
    def is_empty(self) -> bool:
        """Whether the module has no formatter."""
        return self.read is None and self.write is None


class UserFormatters:
    """The formatters of the first of `user_modules` that has any, and of adapters. Importing them may be slow.

    Args:
        path: the checkpoint's directory.
        run: a `Context.run`.

    Raises:
        HandlerError: the model.py of an adapter, with its reason.
        Exception: the user's module raised it when it was imported.
    """

    def __init__(self, config: ModelConfig, path: Path, run: Callable[..., Awaitable[Any]]) -> None:
        self._config = config
        self._run = run
        self._bodies = LargeBodies()
        self._tokenizer = UserTokenizer(path, trust_remote_code=config.option.trust_remote_code)
        self._attributes = {"tokenizer": self._tokenizer, "configs": config.option}
        self._numbers = itertools.count()  # of requests, as output formatters see them
        formatters = map(self._of, user_modules(config))
        self._own: Formatters | None = next((one for one in formatters if not one.is_empty), None)
        self._of_adapters: dict[str, Formatters] = {}
        for name, directory in config.adapters.items():
            self.put(name, self._of_adapter(name, directory))

    async def of_adapter(self, name: str, directory: Path) -> Formatters | None:
        """The formatters in an adapter's directory; None without a model.py. `put` makes requests use them.

        Raises:
            HandlerError: its model.py fails, or its formatters have none of the documented forms.
            ParameterError: it must not run here.
        """
        formatters: Formatters | None = await self._run((), self._of_adapter, name, directory, load_tokenizer=True)
        return formatters

    def put(self, name: str, formatters: Formatters | None) -> None:
        """Have an adapter's requests get these formatters, and no longer those that it had."""
        self.drop(self._of_adapters.pop(name, None))
        if formatters is not None:
            self._of_adapters[name] = formatters

    def drop(self, formatters: Formatters | None) -> None:
        """Let an adapter's formatters go. Requests that have them keep them."""
        if formatters is not None:
            forget_module(formatters.module)

    def load_tokenizer(self) -> None:
        """Load the tokenizer of formatters whose module names one, so that no request waits for it.

        Raises:
            Exception: whatever transformers raises where it can't load the tokenizer.
        """
        if any(
            formatters.names_tokenizer
            for formatters in (self._own, *self._of_adapters.values())
            if formatters is not None
        ):
            self._tokenizer.load()

    def set_config(self, config: ModelConfig) -> None:
        """Tell them the model's configuration with what only the loaded model says."""
        self._config = config

    def close(self) -> None:
        """End the thread that parses large bodies."""
        self._bodies.close()

    def example(self, *, chat: bool) -> dict[str, Any] | None:
        """A body that the model answers, a `chat` where it has a template; None: the user's input formatter knows."""
        if self._own is not None and self._own.read is not None:
            return None
        if chat:
            return {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64}
        return {"inputs": _QUESTION, "parameters": {"max_new_tokens": 64}}

    def _of(self, module: ModuleType) -> Formatters:
        read, write = find_decorated(module, "input_formatter"), find_decorated(module, "output_formatter")
        return Formatters(
            module,
            None if read is None else adapt_input_formatter(read),
            None if write is None else self._writer(write),
            (read or write) is not None and _names_tokenizer(module),
        )

    def _of_adapter(self, name: str, directory: str | Path, *, load_tokenizer: bool = False) -> Formatters | None:
        if (file := adapter_file(directory)) is None:
            return None
        if not self._config.runs_adapter_code:
            raise ParameterError(f"adapter {name}: {file}: secure mode runs no code of a user's", "src")
        module = load_adapter_module(name, file)
        try:
            formatters = self._of(module)
            if load_tokenizer and formatters.names_tokenizer:
                self._tokenizer.load()
        except BaseException as exc:
            forget_module(module)
            raise code_fault(name, file, exc) from exc
        if formatters.is_empty:
            forget_module(module)
            log.warning("adapter %s: %s has neither @input_formatter nor @output_formatter: no effect", name, file)
            return None
        return formatters

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
            tokenizer=self._tokenizer,
            numbers=self._numbers,
            source=made,
        )

    async def parse(self, api: Dialect, inputs: Input) -> tuple[Parsed, Input]:
        """Run the user's input formatter, then parse the request with its dialect.

        The formatter of the adapter that the request names goes before the model's. The request keeps that adapter,
        unless the formatter names another.

        The function returns a payload of the call's API, or a RequestInput, which stands for an LMI payload.

        Returns:
            The parsed request, and the call that the dialect parsed: with the payload of the user's function, if any.

        Raises:
            PayloadError, ParameterError: as from the dialect.
            HandlerError: the function returned something else.
            Exception: the function raised it.
        """
        made: RequestInput | dict[str, Any] | None = None
        adapter = ""
        if self._reads:
            adapter = await self._bodies.parse(size_of(inputs), self._adapter_named, api, inputs)
        read = next((one.read for one in self._for(adapter) if one.read is not None), None)
        if read is not None:
            made = await self._run((inputs,), read, inputs, api.payload, **self._attributes)
            payload = made if isinstance(made, dict) else _payload(made, inputs)
            inputs = api.with_payload(inputs, payload)
        source = None if isinstance(made, dict) else made
        return await self._bodies.parse(size_of(inputs), self._parsed, api, inputs, source, adapter), inputs

    def _for(self, adapter: str) -> list[Formatters]:
        """The formatters of requests with an adapter, "" for none: those of the first module that has one count."""
        return [one for one in (self._of_adapters.get(adapter), self._own) if one is not None]

    @property
    def _reads(self) -> bool:
        """Whether requests may name an adapter, and an input formatter may read them before the dialect does."""
        all_of_them = itertools.chain(self._for(""), self._of_adapters.values())
        return bool(self._config.engine_options.get("enable_lora")) and any(one.read is not None for one in all_of_them)

    def _adapter_named(self, api: Dialect, inputs: Input) -> str:
        return self._one_of(api.adapters_of(inputs, self._config))

    def _one_of(self, adapters: Iterable[str]) -> str:
        """The adapter whose formatters a request has; "": the model's own, also for several without formatters.

        Raises:
            ParameterError: prompts of the request have others than the rest.
        """
        named = set(adapters)
        if len(named) <= 1:
            return next(iter(named), "")
        if own := sorted(named & self._of_adapters.keys()):
            raise ParameterError(
                f"adapters: {own[0]} has formatters of its own (model.py); expected it for every prompt of the request",
                "adapters",
            )
        return ""

    def _parsed(self, api: Dialect, inputs: Input, made: RequestInput | None, adapter: str) -> Parsed:
        """The call as its dialect reads it, with the user's output formatter around the dialect's."""
        parsed = api.parse(inputs, self._config)
        requests, formatter = parsed.requests, parsed.formatter
        if isinstance(made, TextInput) and made.input_ids:
            first = msgspec.structs.replace(requests[0], prompt=tuple(made.input_ids))
            requests = (first, *requests[1:])
        if adapter and not any(request.adapter for request in requests):
            requests = tuple(msgspec.structs.replace(request, adapter=adapter) for request in requests)
        parsed = Parsed(requests, formatter)
        own = None if made is None else made.output_formatter
        adapter = self._one_of(request.adapter for request in requests)
        written = next((one.write for one in self._for(adapter) if one.write is not None), None)
        write = self._writer(own) if callable(own) else written
        return parsed if write is None else Parsed(requests, write(parsed, inputs, made))


def _names_tokenizer(module: ModuleType) -> bool:
    try:
        return "tokenizer" in inspect.getsource(module)
    except OSError:  # a compiled module has no source that could tell
        return True


def _is_asynchronous(config: ModelConfig) -> bool:
    """Whether the model is one of LMI's asynchronous handlers, which give formatters whole responses."""
    return config.option.async_mode or config.option.entry_point in ASYNC_HANDLERS


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

"""Find the handler of a model directory.

Runs in the worker, in the handler's thread: importing a `model.py` may take minutes. Looked for in this order:
option.entryPoint (which config also fills from DJL_ENTRY_POINT), `<model name>.py` or `model.py` in the model
directory, and the built-in handler where there is a checkpoint.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..config import ModelConfig, task_of
from ..config.sources import shown_url
from ..core.errors import ModelLoadError
from ..core.registry import load_object
from ..handler import Handler
from ..output_formatter import find_decorated
from ..usercode.module import BUILT_IN, default_file, existing_file, load_user_module, put_on_path
from ..usercode.transformers4 import gone_calls
from .thread import HandlerThread

log = logging.getLogger(__name__)

DEFAULT_FUNCTION: Final = "handle"


@dataclass(frozen=True)
class Location:
    """Where a model's handler is. Neither a file nor a module: the built-in one.

    Attributes:
        file: name of a file in the model directory.
        module: name of a module to import.
        attribute: name in the file or module; "" for the one that option.handler names.
    """

    file: str = ""
    module: str = ""
    attribute: str = ""


def find_handler(config: ModelConfig, thread: HandlerThread) -> Handler:
    """The model's handler, not yet loaded. Imports the user's module; exceptions of the import pass unchanged.

    Raises:
        ModelLoadError: there is no handler, or the entry point does not have what it should; says what was expected.
        ConfigError: the entry point is a module:attribute that does not exist.
    """
    location = locate(config)
    built_in = None
    if not location.file and not location.module:
        # Imported before the model directory is on the path, where a file may be named like one of its imports.
        built_in = _built_in(config)
    if config.path:
        put_on_path(Path(config.path))
    if location.file:
        for remark in gone_calls(Path(config.path, location.file)):
            log.warning("%s", remark)
        module = load_user_module(config.path, location.file)
        target = _attribute(module, location.attribute) if location.attribute else _from_module(module, config)
    else:
        target = built_in or _from_import(location, config)
    return _as_handler(target, config, thread)


def _built_in(config: ModelConfig) -> Any:
    """The class of the built-in handler for the model's task."""
    return load_object(task_of(config).handler)


def locate(config: ModelConfig) -> Location:
    """Where the handler is, as far as that can be told without running user code.

    Raises:
        ModelLoadError: there is no handler, or option.entryPoint names a URL or a file that is missing.
    """
    directory = Path(config.path) if config.path else None
    entry_point = config.option.entry_point
    if entry_point:
        return _named(entry_point, directory)
    if directory is not None and (file := default_file(config, directory)) is not None:
        return Location(file)
    if config.option.model_id or (directory is not None and (directory / "config.json").is_file()):
        return Location()
    raise ModelLoadError(
        f"no handler found in {config.path or config.url or 'this model'}: expected model.py or "
        f"{config.name}.py with a function {config.option.handler}(inputs), a checkpoint's config.json, or "
        "option.model_id in serving.properties"
    )


def _named(entry_point: str, directory: Path | None) -> Location:
    """The location that option.entryPoint names."""
    if entry_point in BUILT_IN:
        return Location()
    if entry_point.startswith(("http://", "https://")):
        raise ModelLoadError(
            f"option.entryPoint={shown_url(entry_point)}: put the file into the model directory, and name it here"
        )
    name, _, attribute = entry_point.partition(":")
    if name.endswith(".py"):
        if directory is None:
            raise ModelLoadError(f"option.entryPoint={entry_point}: the model has no directory")
        existing_file(directory, name)
        return Location(name, attribute=attribute)
    if not attribute and directory is not None and (directory / f"{entry_point}.py").is_file():
        return Location(f"{entry_point}.py")
    return Location(module=name, attribute=attribute)


def _from_import(location: Location, config: ModelConfig) -> Any:
    if location.attribute:
        return load_object(f"{location.module}:{location.attribute}")
    try:
        return _from_module(importlib.import_module(location.module), config)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{location.module}.".startswith(f"{exc.name}."):
            raise  # it exists, and one of its own imports failed
        raise no_module(location.module) from exc


def no_module(entry_point: str) -> ModelLoadError:
    """The error for an entry point that names nothing."""
    return ModelLoadError(
        f"option.entryPoint={entry_point}: expected a .py file of the model directory, a module, module:attribute, "
        f"or one of {', '.join(sorted(BUILT_IN))}"
    )


def no_function(file: str, wanted: str, functions: Iterable[str]) -> ModelLoadError:
    """The error for a file without anything that could answer."""
    return ModelLoadError(
        f"{file} has no function {wanted!r} (option.handler): expected def {wanted}(inputs), a class with a method "
        "handle, or a function with @output_formatter or @input_formatter. "
        f"Its functions: {', '.join(sorted(functions)) or 'none'}"
    )


def no_attribute(file: str, name: str) -> ModelLoadError:
    """The error for a file without the attribute `name`."""
    return ModelLoadError(f"{file} has no {name!r}")


def _from_module(module: ModuleType, config: ModelConfig) -> Any:
    """The function or class that answers, or the built-in handler for a module that only has formatters."""
    wanted = config.option.handler
    if hasattr(module, wanted):
        return _attribute(module, wanted)
    if wanted == DEFAULT_FUNCTION:
        if len(classes := _handler_classes(module)) == 1:
            return classes[0]
        if classes:
            file_name = Path(module.__file__ or module.__name__).name
            raise ModelLoadError(
                f"{file_name} has several classes with a method handle: {', '.join(one.__name__ for one in classes)}. "
                f"option.entryPoint={file_name}:{classes[-1].__name__} takes one of them"
            )
        if any(find_decorated(module, decorator) for decorator in ("output_formatter", "input_formatter")):
            return _built_in(config)
    raise no_function(Path(module.__file__ or module.__name__).name, wanted, _own_functions(module))


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError as exc:
        raise no_attribute(Path(module.__file__ or module.__name__).name, name) from exc


def _handler_classes(module: ModuleType) -> list[type]:
    """The module's classes that can answer, without those that another of them derives from."""
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
        and (issubclass(value, Handler) or callable(getattr(value, "handle", None)))
    ]
    return [one for one in found if not any(one is not other and issubclass(other, one) for other in found)]


def _own_functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _as_handler(target: Callable[..., Any] | type, config: ModelConfig, thread: HandlerThread) -> Handler:
    if inspect.isclass(target) and issubclass(target, Handler):
        return target()
    if isinstance(target, Handler):
        return target
    if not callable(target):
        raise ModelLoadError(f"the handler is a {type(target).__name__}, expected a function or a class")
    if inspect.isclass(target) and not callable(getattr(target, "handle", None)):
        raise ModelLoadError(f"the handler class {target.__name__} has no method handle(inputs)")
    from .user_handler import UserHandler

    return UserHandler(target, thread)

"""Which handler a model directory has.

Runs in the worker, in the handler's thread: importing a `model.py` may take minutes. In order: option.entryPoint
(which config also fills from DJL_ENTRY_POINT), `<model name>.py` or `model.py` in the model directory, and the
built-in handler where there is a checkpoint.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ..config import ModelConfig
from ..errors import ModelLoadError
from ..handler import Handler
from ..output_formatter import find_decorated
from ..registry import load_object
from ..user_module import default_file, load_user_module, put_on_path

if TYPE_CHECKING:
    from .thread import HandlerThread

DEFAULT_FUNCTION: Final = "handle"
TEXT_GENERATION: Final = "djl_python.handlers.text_generation:TextGenerationHandler"

#: Names of LMI's handlers, as option.entryPoint has them, and ours.
BUILT_IN: Final = {
    "text-generation": TEXT_GENERATION,
    "djl_python.deepspeed": TEXT_GENERATION,
    "djl_python.huggingface": TEXT_GENERATION,
    "djl_python.lmi_trtllm.trtllm_async_service": TEXT_GENERATION,
    "djl_python.lmi_vllm.vllm_async_service": TEXT_GENERATION,
    "djl_python.tensorrt_llm": TEXT_GENERATION,
    "djl_python.transformers_neuronx": TEXT_GENERATION,
}


def find_handler(config: ModelConfig, thread: HandlerThread) -> Handler:
    """The model's handler, not yet loaded. Imports the user's module; what that raises is left as it is.

    Raises:
        ModelLoadError: there is no handler, or the entry point does not have what it should; says what was expected.
        ConfigError: a module:attribute that does not exist.
    """
    directory = Path(config.path) if config.path else None
    if directory is not None:
        put_on_path(directory)
    entry_point = config.option.entry_point
    if entry_point:
        target = _from_entry_point(entry_point, config, directory)
    elif directory is not None and (file := default_file(config, directory)) is not None:
        target = _from_module(load_user_module(directory, file), config)
    elif config.option.model_id or (directory is not None and (directory / "config.json").is_file()):
        target = load_object(TEXT_GENERATION)
    else:
        raise ModelLoadError(
            f"no handler found in {config.path or config.url or 'this model'}: expected model.py or "
            f"{config.name}.py with a function {config.option.handler}(inputs), a checkpoint's config.json, or "
            "option.model_id in serving.properties"
        )
    return _as_handler(target, config, thread)


def _from_entry_point(entry_point: str, config: ModelConfig, directory: Path | None) -> Any:
    if entry_point in BUILT_IN:
        return load_object(BUILT_IN[entry_point])
    if entry_point.startswith(("http://", "https://")):
        raise ModelLoadError(
            f"option.entryPoint={entry_point}: put the file into the model directory, and name it here"
        )
    file_name, _, attribute = entry_point.partition(":")
    if file_name.endswith(".py"):
        if directory is None:
            raise ModelLoadError(f"option.entryPoint={entry_point}: the model has no directory")
        module = load_user_module(directory, file_name)
        return _attribute(module, attribute) if attribute else _from_module(module, config)
    if attribute:
        return load_object(entry_point)
    if directory is not None and (directory / f"{entry_point}.py").is_file():
        return _from_module(load_user_module(directory, f"{entry_point}.py"), config)
    try:
        return _from_module(importlib.import_module(entry_point), config)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{entry_point}.".startswith(f"{exc.name}."):
            raise  # it exists, and one of its own imports failed
        raise ModelLoadError(
            f"option.entryPoint={entry_point}: expected a .py file of the model directory, a module, module:attribute, "
            f"or one of {', '.join(sorted(BUILT_IN))}"
        ) from exc


def _from_module(module: ModuleType, config: ModelConfig) -> Any:
    """The function or class that answers, or the built-in handler for a module that only has formatters."""
    wanted = config.option.handler
    if hasattr(module, wanted):
        return _attribute(module, wanted)
    if wanted == DEFAULT_FUNCTION:
        if len(classes := _handler_classes(module)) == 1:
            return classes[0]
        if any(find_decorated(module, decorator) for decorator in ("output_formatter", "input_formatter")):
            return load_object(TEXT_GENERATION)
    found = ", ".join(sorted(_own_functions(module))) or "none"
    raise ModelLoadError(
        f"{Path(module.__file__ or module.__name__).name} has no function {wanted!r} (option.handler): expected "
        f"def {wanted}(inputs), a class with a method handle, or a function with @output_formatter or "
        f"@input_formatter. Its functions: {found}"
    )


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError as exc:
        raise ModelLoadError(f"{Path(module.__file__ or module.__name__).name} has no {name!r}") from exc


def _handler_classes(module: ModuleType) -> list[type]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
        and (issubclass(value, Handler) or callable(getattr(value, "handle", None)))
    ]


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

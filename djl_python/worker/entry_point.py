"""Find the handler of a model directory.

Runs in the worker, in the handler's thread: importing a `model.py` may take minutes. Looked for in this order:
option.entryPoint (which config also fills from DJL_ENTRY_POINT), `<model name>.py` or `model.py` in the model
directory, and the built-in handler where there is a checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..compat.output_formatter import find_decorated
from ..config import ModelConfig, read_json_object, task_of
from ..config.loading import nothing_to_serve
from ..config.sources import shown_url
from ..config.tasks import BUILT_IN_HANDLERS, IMAGE_HANDLERS, service_remarks, service_takes, service_task
from ..core.errors import ConfigError, ModelLoadError
from ..core.names import did_you_mean
from ..core.registry import load_object
from ..handler import Handler
from ..sources import local_path, path_here
from ..usercode.module import default_file, load_user_module, put_on_path
from ..usercode.remote import fetched_file, is_url
from ..usercode.transformers4 import gone_calls
from .thread import HandlerThread

log = logging.getLogger(__name__)

DEFAULT_FUNCTION: Final = "handle"
_ENTRY_POINT: Final = "option.entryPoint"
#: DJL's HuggingFaceService.
_SERVICE: Final = "djl_python.huggingface:handle"


@dataclass(frozen=True)
class Location:
    """The place of a model's handler. Without values: the built-in one.

    Attributes:
        file: name of a file in the model directory.
        remote: whether it is the file behind the URL that option.entryPoint is.
        module: name of a module to import.
        attribute: name in the file or module; "": option.handler names it.
        task: the task of DJL's HuggingFaceService, for a model that the built-in handler does not serve; else "".
    """

    file: str = ""
    module: str = ""
    attribute: str = ""
    remote: bool = False
    task: str = ""

    @property
    def is_built_in(self) -> bool:
        """Whether neither code of the user's nor DJL's service answers."""
        return not (self.file or self.module or self.remote or self.task)


def find_handler(config: ModelConfig, thread: HandlerThread) -> Handler:
    """The model's handler, not yet loaded. Imports the user's module; exceptions of the import pass unchanged.

    Raises:
        ModelLoadError: there is no handler, or the entry point lacks the attribute; says what was expected.
        ConfigError: the entry point is a module:attribute that does not exist.
    """
    location = _when_fetched(locate(config), config)
    built_in = None
    # Imported before the model directory is on the path, where a file may be named like one of its imports.
    if location.is_built_in:
        built_in = _built_in(config)
    elif location.task:
        check_service_checkpoint(config)
        built_in = load_object(_SERVICE)
        for remark in service_remarks(config):
            log.warning("%s", remark)
    if config.path:
        put_on_path(Path(config.path))
    if location.file or location.remote:
        file = fetched_file(config) if location.remote else Path(config.path, location.file)
        refusals, remarks = gone_calls(file)
        for remark in remarks:
            log.warning("%s", remark)
        if refusals:
            raise ModelLoadError("\n".join(refusals))
        folder = file.parent if location.remote else Path(config.path)
        module = load_user_module(folder, str(file.relative_to(folder)))
        target = _attribute(module, location.attribute, config) if location.attribute else _from_module(module, config)
    else:
        target = built_in or _from_import(location, config)
    return _as_handler(target, config, thread)


def _built_in(config: ModelConfig) -> Any:
    """The class of the built-in handler for the model's task."""
    return load_object(task_of(config, _checkpoint(config)).handler)


def _checkpoint(config: ModelConfig) -> Path | None:
    """The checkpoint's directory, which is fetched if only its files show the model's task; None: not needed."""
    option, directory = config.option, Path(config.path)
    try:
        if option.task or path_here(option.model_id, directory) is not None:
            return local_checkpoint(config)
    except ConfigError:
        return None
    return local_path(option.model_id, option.revision, directory, Path(config.cache_dir) if config.cache_dir else None)


def local_checkpoint(config: ModelConfig) -> Path | None:
    """The checkpoint's directory; None: it has to be fetched, or does not exist, which loading will report."""
    with contextlib.suppress(ConfigError):
        return path_here(config.option.model_id, Path(config.path))
    return None


def check_service_checkpoint(config: ModelConfig) -> None:
    """Refuse a model of DJL's service that has no checkpoint, where one should be local.

    Raises:
        ConfigError: there is no checkpoint.
        ModelLoadError: the checkpoint has no config.json, or a broken one.
    """
    option = config.option
    cited = config.cite("option.model_id", shown_url(option.model_id)) if option.model_id else ""
    here = path_here(option.model_id, Path(config.path), cited)
    if here is not None and not read_json_object(here / "config.json"):
        raise ModelLoadError(f"{here}: there is no config.json: expected a checkpoint of transformers")


def locate(config: ModelConfig) -> Location:
    """The place of the handler, as far as it is known without running user code.

    Raises:
        ModelLoadError: there is no handler, or option.entryPoint names a file that is missing.
    """
    directory = Path(config.path) if config.path else None
    entry_point = config.option.entry_point
    if entry_point:
        return _named(config, directory)
    if directory is not None and (file := default_file(config, directory)) is not None:
        return Location(file)
    if nothing := nothing_to_serve(config):
        raise ModelLoadError(nothing)
    return _of_checkpoint(config)


def _of_checkpoint(config: ModelConfig) -> Location:
    """The built-in handler, or DJL's service for other tasks."""
    return Location(task=service_task(config, local_checkpoint(config)))


def _when_fetched(location: Location, config: ModelConfig) -> Location:
    """The location for a checkpoint whose task is unknown until it is fetched."""
    if not location.is_built_in or config.option.task or not service_takes(config):
        return location
    return Location(task=service_task(config, _checkpoint(config)))


def _named(config: ModelConfig, directory: Path | None) -> Location:
    """The location that option.entryPoint names."""
    entry_point = config.option.entry_point
    if entry_point in BUILT_IN_HANDLERS:
        return _of_checkpoint(config)
    if is_url(entry_point):
        return Location(remote=True)
    name, _, attribute = entry_point.partition(":")
    if name.endswith(".py"):
        if directory is None:
            raise ModelLoadError(f"{config.cite(_ENTRY_POINT, entry_point)}: the model has no directory")
        if not (directory / name).is_file():
            files = sorted(str(path.relative_to(directory)) for path in directory.glob("*.py"))
            raise ModelLoadError(
                f"{config.cite(_ENTRY_POINT, entry_point)}: the entry point {name} does not exist in {directory}"
                f"{did_you_mean(name, files) or _beside(files)}"
            )
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
        raise no_module(config) from exc


def no_module(config: ModelConfig) -> ModelLoadError:
    """The error for an entry point that names nothing."""
    entry_point = config.option.entry_point
    if entry_point in IMAGE_HANDLERS:
        return ModelLoadError(
            f"{config.cite(_ENTRY_POINT, entry_point)}: no built-in handler makes images. A model.py with "
            "handle(inputs) can serve them, with diffusers for example"
        )
    return ModelLoadError(
        f"{config.cite(_ENTRY_POINT, entry_point)}: expected a .py file of the model directory, a module, "
        f"module:attribute, or one of {', '.join(sorted(BUILT_IN_HANDLERS))}"
        f"{did_you_mean(entry_point, BUILT_IN_HANDLERS)}"
    )


def no_function(config: ModelConfig, file: str, functions: Collection[str]) -> ModelLoadError:
    """The error for a file without a handler."""
    wanted = config.option.handler
    return ModelLoadError(
        f"{file} has no function {wanted!r} ({config.cite('option.handler', wanted)}): expected def {wanted}(inputs), "
        "a class with a method handle, or a function with @output_formatter or @input_formatter. "
        f"Its functions: {', '.join(sorted(functions)) or 'none'}{did_you_mean(wanted, functions)}"
    )


def no_attribute(config: ModelConfig, file: str, name: str, others: Collection[str]) -> ModelLoadError:
    """The error for a file without the attribute `name`."""
    entry_point = config.cite(_ENTRY_POINT, config.option.entry_point)
    return ModelLoadError(f"{entry_point}: {file} has no {name!r}{did_you_mean(name, others)}")


def _beside(files: Sequence[str]) -> str:
    return f"; there is {', '.join(files)}" if files else ""


def _from_module(module: ModuleType, config: ModelConfig) -> Any:
    """The handler's function or class, or the built-in handler for a module that only has formatters."""
    wanted = config.option.handler
    if hasattr(module, wanted):
        return _attribute(module, wanted, config)
    if wanted == DEFAULT_FUNCTION:
        if len(classes := _handler_classes(module)) == 1:
            return classes[0]
        if classes:
            file_name = Path(module.__file__ or module.__name__).name
            candidates = ", ".join(candidate.__name__ for candidate in classes)
            raise ModelLoadError(
                f"{file_name} has several classes with a method handle: {candidates}. "
                f"option.entryPoint={file_name}:{classes[-1].__name__} takes one of them"
            )
        if any(find_decorated(module, decorator) for decorator in ("output_formatter", "input_formatter")):
            return _built_in(config)
    raise no_function(config, Path(module.__file__ or module.__name__).name, _own_functions(module))


def _attribute(module: ModuleType, name: str, config: ModelConfig) -> Any:
    try:
        return getattr(module, name)
    except AttributeError as exc:
        file = Path(module.__file__ or module.__name__).name
        raise no_attribute(config, file, name, _own_functions(module)) from exc


def _handler_classes(module: ModuleType) -> list[type]:
    """The module's handler classes, without base classes of others."""
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
        and (issubclass(value, Handler) or callable(getattr(value, "handle", None)))
    ]
    return [
        candidate
        for candidate in classes
        if not any(candidate is not other and issubclass(other, candidate) for other in classes)
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

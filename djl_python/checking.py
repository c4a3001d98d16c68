"""Which handler a model has and what that handler would refuse, without running the user's code.

Runs in the front end, for `djl-serving check`. Whatever is refused here is also refused when the model is served, by
the same functions or in the same words. What only an import or a download can show is accepted.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from .config import ModelConfig, task_of
from .config.sources import shown_url
from .core import registry
from .usercode.module import put_on_path, user_file
from .usercode.source import UserSource
from .usercode.transformers4 import gone_calls
from .worker.entry_point import DEFAULT_FUNCTION, Location, locate, no_attribute, no_function, no_module


def handler_of(config: ModelConfig) -> str:
    """Describe the handler that the worker will load; a line follows for each setting that the built-in one ignores.

    Raises:
        ModelLoadError, ConfigError: there is no handler, or it would not load.
    """
    location = locate(config)
    if location.file:
        remarks = gone_calls(Path(config.path, location.file))
        return _of_file(config, location) + "".join(f"\n  warning: {remark}" for remark in remarks)
    if location.module:
        return _of_module(config, location)
    return _built_in(config)


def _built_in(config: ModelConfig, file: str = "") -> str:
    task = task_of(config)
    registry.load_object(task.check)(config)
    file = file or user_file(config) or ""
    if file and not config.option.python_executable:
        UserSource(Path(config.path, file))  # must be valid Python: the worker imports it for its formatters
    formatters = f", and what {Path(config.path, file)} has of formatters" if file else ""
    checkpoint = shown_url(config.option.model_id) or config.path
    remarks = "".join(f"\n  warning: {remark}" for remark in registry.load_object(task.without_effect)(config))
    return f"{task.name}, built in, with the checkpoint {checkpoint}{formatters}{remarks}"


def _of_file(config: ModelConfig, location: Location) -> str:
    """The handler that importing the file would find, looked for in the order of `worker.entry_point`."""
    path, wanted = Path(config.path, location.file), config.option.handler
    chosen = " (option.entryPoint)" if config.option.entry_point else ""
    if config.option.python_executable:  # perhaps another version of Python, with another syntax
        return f"{path}{chosen}, and of it what its import will show"
    source = UserSource(path)
    if location.attribute:
        if source.has(location.attribute) is False:
            raise no_attribute(path.name, location.attribute)
        return f"{path}:{location.attribute}{chosen}"
    has = source.has(wanted)
    if has:
        return f"{path}{chosen}, function {wanted}"
    if wanted == DEFAULT_FUNCTION and has is False:
        if source.handler_class:
            return f"{path}{chosen}, class {source.handler_class}"
        if source.handler_class == "" and source.has_formatters:
            return _built_in(config, location.file)
        if source.handler_class is None or source.has_formatters is None:
            has = None
    if has is None:
        return f"{path}{chosen}, and of it what its import will show"
    raise no_function(path.name, wanted, source.functions)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package on its way
        return False


def _of_module(config: ModelConfig, location: Location) -> str:
    if config.path:
        put_on_path(Path(config.path))
    # Another interpreter, or another environment, may have other modules.
    here = not config.option.python_executable and not config.option.env
    name = location.module.partition(".")[0]
    if name == __package__:  # of our own packages more can be told without running a user's code
        name = location.module
    if here and (not name or not _exists(name)):
        entry_point = config.option.entry_point
        raise registry.no_module(entry_point, name) if location.attribute else no_module(entry_point)
    if here and name == location.module and name.startswith(f"{__package__}."):
        check = getattr(importlib.import_module(name), "check", None)  # a handler of ours knows what it will refuse
        if check is not None:
            check({"model_dir": config.path} | config.properties)
    what = (
        f"{location.module}:{location.attribute}"
        if location.attribute
        else f"{location.module}, function {config.option.handler}"
    )
    return f"{what} (option.entryPoint)"

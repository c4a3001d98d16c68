"""Which handler a model has and what that handler would refuse, without running the user's code.

Runs in the front end, for `djl-serving check`. Whatever is refused here is also refused when the model is served, by
the same functions or in the same words. What only an import or a download can show is accepted.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from . import registry
from .config import ModelConfig
from .handlers.checks import check, without_effect
from .sources import shown_url
from .user_module import put_on_path, user_file
from .user_source import UserSource
from .worker.entry_point import DEFAULT_FUNCTION, Place, locate, no_attribute, no_function, no_module

BUILT_IN_HANDLER: Final = "text-generation"


def handler_of(config: ModelConfig) -> str:
    """Describe the handler that the worker will load; a line follows for each setting that the built-in one ignores.

    Raises:
        ModelLoadError, ConfigError: there is no handler, or it would not load.
    """
    place = locate(config)
    if place.file:
        return _of_file(config, place)
    if place.module:
        return _of_module(config, place)
    return _built_in(config)


def _built_in(config: ModelConfig, file: str = "") -> str:
    check(config)
    file = file or user_file(config) or ""
    if file and not config.option.python_executable:
        UserSource(Path(config.path, file))  # must be valid Python: the worker imports it for its formatters
    formatters = f", and what {Path(config.path, file)} has of formatters" if file else ""
    checkpoint = shown_url(config.option.model_id) or config.path
    remarks = "".join(f"\n  warning: {remark}" for remark in without_effect(config))
    return f"{BUILT_IN_HANDLER}, built in, with the checkpoint {checkpoint}{formatters}{remarks}"


def _of_file(config: ModelConfig, place: Place) -> str:
    """The handler that importing the file would find, looked for in the order of `worker.entry_point`."""
    path, wanted = Path(config.path, place.file), config.option.handler
    chosen = " (option.entryPoint)" if config.option.entry_point else ""
    if config.option.python_executable:  # perhaps another version of Python, with another syntax
        return f"{path}{chosen}, and of it what its import will show"
    source = UserSource(path)
    if place.attribute:
        if source.has(place.attribute) is False:
            raise no_attribute(path.name, place.attribute)
        return f"{path}:{place.attribute}{chosen}"
    has = source.has(wanted)
    if has:
        return f"{path}{chosen}, function {wanted}"
    if wanted == DEFAULT_FUNCTION and has is False:
        if source.handler_class:
            return f"{path}{chosen}, class {source.handler_class}"
        if source.handler_class == "" and source.has_formatters:
            return _built_in(config, place.file)
        if source.handler_class is None or source.has_formatters is None:
            has = None
    if has is None:
        return f"{path}{chosen}, and of it what its import will show"
    raise no_function(path.name, wanted, source.functions)


def _of_module(config: ModelConfig, place: Place) -> str:
    if config.path:
        put_on_path(Path(config.path))
    # Another interpreter, or another environment, may have other modules.
    here = not config.option.python_executable and not config.option.env
    name = place.module.partition(".")[0]
    if here and (not name or importlib.util.find_spec(name) is None):
        entry_point = config.option.entry_point
        raise registry.no_module(entry_point, name) if place.attribute else no_module(entry_point)
    what = (
        f"{place.module}:{place.attribute}" if place.attribute else f"{place.module}, function {config.option.handler}"
    )
    return f"{what} (option.entryPoint)"

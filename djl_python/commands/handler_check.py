"""Finds a model's handler and what it would refuse, without running the user's code.

Runs in the front end, for `djl-serving check`. Everything refused here is also refused when the model is served, by the
same functions or in the same words. Faults that only an import or a download can show are not found.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from ..config import ENGINES, ModelConfig, task_of
from ..config.engines import engine_name
from ..config.sources import shown_url
from ..config.tasks import service_remarks
from ..core import registry
from ..core.errors import ConfigError
from ..core.faults import Faults
from ..ipc.package_path import PACKAGE
from ..server.environments.interpreter import engines_python
from ..sources import path_here
from ..usercode.adapter_module import adapter_file
from ..usercode.imports import import_faults, may_bring_more, module_exists, required
from ..usercode.module import user_file
from ..usercode.source import UserSource
from ..usercode.transformers4 import gone_calls
from ..worker.entry_point import (
    DEFAULT_FUNCTION,
    Location,
    check_service_checkpoint,
    local_checkpoint,
    locate,
    no_attribute,
    no_function,
    no_module,
)

#: About a file whose handler can't be found without running it.
_AFTER_IMPORT: Final = "its handler is known only after its import"


def handler_of(config: ModelConfig) -> list[str]:
    """Describe the handler that the worker will load; a warning follows for each setting that has no effect in it.

    Raises:
        ModelLoadError: the model has no handler, or the handler would not load; a line for each reason.
    """
    faults = Faults()
    described = _handler(config, faults)
    faults.refuse()
    return described


def checkpoint_here(config: ModelConfig) -> Path | str | None:
    """The checkpoint that the built-in handler or DJL's service would load; its name if it has to be downloaded.

    None: code of the user's own serves the model, or `handler_of` reports the fault of the checkpoint's place.
    """
    with Faults().collected():
        location = locate(config)
        if location.module or location.remote:
            return None
        if location.file:
            source = _source(config, Path(config.path, location.file), Faults())
            if source is None or not _has_only_formatters(config, location, source):
                return None
        here = path_here(config.option.model_id, Path(config.path))
        return shown_url(config.option.model_id) if here is None else here
    return None


def _handler(config: ModelConfig, faults: Faults) -> list[str]:
    with faults.collected():
        location = locate(config)
        if location.file:
            return [*_of_file(config, location, faults), *_of_transformers_4(config, location, faults)]
        if location.module:
            return [_of_module(config, location, faults)]
        if location.remote:
            return [f"{shown_url(config.option.entry_point)} (option.entryPoint); {_AFTER_IMPORT}"]
        if location.task:
            check_service_checkpoint(config)
            handler = f"{location.task}, by djl_python.huggingface, with the checkpoint {_checkpoint(config)}"
            return [handler, *service_remarks(config)]
        return _built_in(config, faults)
    return [""]


def _built_in(config: ModelConfig, faults: Faults, file: str = "") -> list[str]:
    file = file or user_file(config) or ""
    if file:
        _source(config, Path(config.path, file), faults)  # the worker imports it for its formatters
    codes = {name: code for name, path in config.adapters.items() if (code := adapter_file(path)) is not None}
    for code in codes.values():
        if not config.option.python_executable:
            with faults.collected():
                UserSource(code)
    for key in ("rolling_batch", "tool_call_parser", "reasoning_parser"):
        with faults.collected():
            _check_module(config, f"option.{key}", getattr(config.option, key))
    here = local_checkpoint(config)
    task = task_of(config, here)
    with faults.collected():
        registry.load_object(task.check)(config, thorough=True)
    formatters = f", and the formatters of {Path(config.path, file)}" if file else ""
    formatters += f", and the formatters of these adapters: {', '.join(codes)}" if codes else ""
    remarks = [] if faults else registry.load_object(task.without_effect)(config)
    with_checkpoint = f"built in, with the checkpoint {_checkpoint(config)}"
    if config.option.task or here is not None:
        return [f"{task.name}, {with_checkpoint}{formatters}", *remarks]
    return [f"{with_checkpoint} (its config.json decides the task){formatters}", *remarks]


def _checkpoint(config: ModelConfig) -> str:
    return shown_url(config.option.model_id) or config.path


def _check_module(config: ModelConfig, key: str, value: str) -> None:
    """Refuse a module:Class of the user's whose module does not exist."""
    module, colon, _ = value.partition(":")
    if not colon or (key == "option.rolling_batch" and engine_name(value) in ENGINES) or not _is_here(config):
        return
    if not may_bring_more(_directory(config)) and not module_exists(module.partition(".")[0], _directory(config)):
        raise ConfigError(f"{config.cite(key, value)}: there is no module {module!r}")


def _directory(config: ModelConfig) -> Path | None:
    return Path(config.path) if config.path else None


def _is_here(config: ModelConfig) -> bool:
    """Whether workers have the Python of this process; another interpreter may have other modules and syntax."""
    option = config.option
    return not option.python_executable and "PYTHON" not in option.env and not engines_python(config)


def _source(config: ModelConfig, path: Path, faults: Faults) -> UserSource | None:
    """The user's file, if all its imports exist; None at a fault, or if another Python would read it."""
    if config.option.python_executable:
        return None
    with faults.collected():
        source = UserSource(path)
        if _is_here(config):
            faults.add(import_faults(path, source.tree, Path(config.path)))
        return source
    return None


def _of_file(config: ModelConfig, location: Location, faults: Faults) -> list[str]:
    """The handler that importing the file would find, looked for in the order of `worker.entry_point`."""
    path, wanted = Path(config.path, location.file), config.option.handler
    chosen = " (option.entryPoint)" if config.option.entry_point else ""
    unknown = f"{path}{chosen}; {_AFTER_IMPORT}"
    source = _source(config, path, faults)
    if source is None:
        return [unknown]
    if location.attribute:
        if source.has(location.attribute) is False:
            raise no_attribute(config, path.name, location.attribute, source.functions)
        return [f"{path}:{location.attribute}{chosen}"]
    has = source.has(wanted)
    if has:
        return [f"{path}{chosen}, function {wanted}"]
    if _has_only_formatters(config, location, source):
        return _built_in(config, faults, location.file)
    if wanted == DEFAULT_FUNCTION and has is False:
        if source.handler_class:
            return [f"{path}{chosen}, class {source.handler_class}"]
        if source.handler_class is None or source.has_formatters is None:
            has = None
    if has is None:
        return [unknown]
    raise no_function(config, path.name, source.functions)


def _has_only_formatters(config: ModelConfig, location: Location, source: UserSource) -> bool:
    """Whether the built-in handler serves the model, with formatters of the file."""
    if location.attribute or config.option.handler != DEFAULT_FUNCTION or source.has(DEFAULT_FUNCTION) is not False:
        return False
    return source.handler_class == "" and source.has_formatters is True


def _of_transformers_4(config: ModelConfig, location: Location, faults: Faults) -> list[str]:
    """Warnings about the file's uses of transformers 4, unless it runs with another Python or other packages."""
    if not _is_here(config) or "transformers" in required(_directory(config)):
        return []
    refusals, remarks = gone_calls(Path(config.path, location.file))
    faults.add(refusals)
    return remarks


def _of_module(config: ModelConfig, location: Location, faults: Faults) -> str:
    here = _is_here(config)
    name = location.module.partition(".")[0]
    if name == PACKAGE:  # our own packages can be checked further without running a user's code
        name = location.module
    # Requirements are installed when the model is loaded, and may have any module but ours.
    to_come = name.partition(".")[0] != PACKAGE and may_bring_more(_directory(config))
    if here and (not name or not (to_come or module_exists(name, _directory(config)))):
        raise registry.no_module(config.option.entry_point, name) if location.attribute else no_module(config)
    file = Path(config.path, f"{location.module}.py")
    if config.path and file.is_file():
        _source(config, file, faults)
    if here and name == location.module and name.startswith(f"{PACKAGE}."):
        check = getattr(importlib.import_module(name), "check", None)  # our own handlers have checks
        if check is not None:
            check({"model_dir": config.path} | config.properties)
    what = (
        f"{location.module}:{location.attribute}"
        if location.attribute
        else f"{location.module}, function {config.option.handler}"
    )
    return f"{what} (option.entryPoint)"

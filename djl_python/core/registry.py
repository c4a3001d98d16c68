"""Resolve names to objects, which are imported only when chosen.

Runs in every process. A plug-in is a name in a table or a "module:attribute" path; built-ins are loaded in the same
way. A missing module is distinguished from a module whose own imports fail.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError
from .names import did_you_mean


def load_object(path: str) -> Any:
    """Import "package.module:attribute".

    Raises:
        ConfigError: no such module, or no such attribute in it.
        ImportError: the module exists and one of its own imports failed (passed on unchanged: it is not our module).
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{path!r}: expected module:attribute")
    try:
        target = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise
        raise no_module(path, exc.name) from exc
    try:
        for name in attribute.split("."):
            target = getattr(target, name)
    except AttributeError as exc:
        raise ConfigError(f"{path!r}: module {module_name!r} has no {attribute!r}") from exc
    return target


def no_module(path: str, name: str) -> ConfigError:
    """The error for a missing module `name` that `path` needs."""
    return ConfigError(f"{path!r}: there is no module {name!r}")


def resolve(table: Mapping[str, str], name: str, what: str) -> Any:
    """The object that `name` stands for: a key of `table`, or itself a "module:attribute".

    Raises:
        ConfigError: it is neither (the message lists the table), or there is no such module or attribute.
    """
    return load_object(path_of(table, name, what))


def path_of(table: Mapping[str, str], name: str, what: str) -> str:
    """The "module:attribute" that `name` stands for, without importing it.

    Raises:
        ConfigError: neither a key of `table` nor a "module:attribute"; the message lists the table.
    """
    if name in table:
        return table[name]
    if ":" in name:
        return name
    raise ConfigError(
        f"{what} {name!r} is not known; expected one of {', '.join(sorted(table))}, or module:Class"
        f"{did_you_mean(name, table)}"
    )

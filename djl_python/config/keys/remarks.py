"""Warnings about keys that are unknown, misplaced, empty, another engine's or without effect.

Runs in the front end.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from ...core.names import did_you_mean
from ..binding import is_utf8, settings_of
from ..engines import all_options, own_options, row_of
from ..properties_file import PropertyEntry
from ..settings.options import Options
from ..settings.server import ServerConfig
from ..settings.serving import ServingSettings
from .without_effect import OPTIONS_WITHOUT_EFFECT, SERVER_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT

#: Keys that DJL or LMI knows and that have no effect here.
WITHOUT_EFFECT: Final = frozenset({*SERVING_WITHOUT_EFFECT, *(f"option.{key}" for key in OPTIONS_WITHOUT_EFFECT)})
_OF_TABLES: Final = ("model_format", "trust_insecure_model_files", "default_accept")
#: Values of option.entryPoint -> the keys that only this handler reads.
HANDLER_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "djl_python.sklearn_handler": frozenset(f"option.{key}" for key in (*_OF_TABLES, "skops_trusted_types")),
    "djl_python.xgboost_handler": frozenset(f"option.{key}" for key in _OF_TABLES),
}
_PASSED_ON: Final = "is not known: passed to the handler"


class Declared:
    """The settings that are declared for a model, its engine's own options included.

    Attributes:
        takes_any_option: the engine's name, if it takes undeclared options; else "".
        without_effect: options, without the prefix, that the engine knows and ignores -> why.
        aliases: other names of keys -> the keys.
        keys: every key and every alias.
        of_others: keys that only other engines take -> the names of these engines.
    """

    def __init__(self, rolling_batch: str) -> None:
        row = row_of(rolling_batch)
        self.takes_any_option = row.name if row is not None and row.takes_any_option else ""
        self.without_effect = row.options_without_effect if row is not None else {}
        self.engine_options = own_options(rolling_batch)
        self.structs = ((ServingSettings, ""), (Options, "option."), (self.engine_options, "option."))
        settings = [setting for struct, prefix in self.structs for setting in settings_of(struct, prefix)]
        self.aliases = {alias: setting.key for setting in settings for alias in setting.aliases}
        self.keys = frozenset(setting.key for setting in settings) | self.aliases.keys()
        self.of_others: dict[str, list[str]] = {}
        for engine, struct in all_options().items():
            for setting in settings_of(struct, "option."):
                for key in {setting.key, *setting.aliases} - self.keys:
                    self.of_others.setdefault(key, []).append(engine)


def remarks(
    entries: Mapping[str, PropertyEntry],
    declared: Declared,
    *,
    entry_point: str,
    own_code: bool,
    directory: Path | None,
) -> Iterator[str]:
    """A warning for each key that may not do what its author expects.

    Args:
        entry_point: the model's option.entryPoint; some of our handlers read keys that no setting declares.
        own_code: whether code of the model's own gets the settings; the built-in handler reads no other keys.
        directory: the model's; a key that a Python file there names is that file's own.
    """
    code_names = _words_of(directory)
    of_handler = HANDLER_KEYS.get(entry_point, frozenset())
    for key, (value, source) in entries.items():
        if key in of_handler:
            continue
        if key in declared.keys:
            if not value.strip():
                yield f"{source}: {key} is empty: the default counts"
        elif is_utf8(f"{key} {value}"):
            remark = _remark(key, declared, own_code, of_handler)
            # One that resembles a declared key has another remark: it may be misspelt in the code as well.
            if remark != _PASSED_ON or not code_names(key.removeprefix("option.")):
                yield f"{source}: {key} {remark}"


def _remark(key: str, declared: Declared, own_code: bool, of_handler: Collection[str]) -> str:
    """The warning about a key that no setting of the model declares."""
    option = key.removeprefix("option.")
    if option == key:
        if key in SERVING_WITHOUT_EFFECT:
            return f"has no effect: {SERVING_WITHOUT_EFFECT[key]}"
        if key in SERVER_WITHOUT_EFFECT:
            return f"has no effect: {SERVER_WITHOUT_EFFECT[key]}"
        if key in _server_keys():
            return f"is the server's, not a model's: it counts in config.properties, or as SERVING_{key.upper()}"
        return f"is not known{did_you_mean(key, declared.keys)}"
    if option in declared.without_effect:
        return f"has no effect: {declared.without_effect[option]}"
    if declared.takes_any_option:
        return f"is passed to {declared.takes_any_option}"
    if option in OPTIONS_WITHOUT_EFFECT:
        return f"has no effect: {OPTIONS_WITHOUT_EFFECT[option]}"
    if key in declared.of_others:
        return f"has no effect: only option.rolling_batch={' and '.join(declared.of_others[key])} takes it"
    fault = _PASSED_ON if own_code else "is not known"
    return fault + did_you_mean(key, (*of_handler, *declared.keys))


def misplaced(entries: Mapping[str, PropertyEntry], declared: Declared, key: str) -> str:
    """'; SOURCE: KEY is not known; did you mean ...?' for a misspelling of `key`; "" if there is none."""
    names = [key, *(alias for alias, main in declared.aliases.items() if main == key)]
    for name, entry in entries.items():
        if name not in declared.keys and (hint := did_you_mean(name, names)):
            return f"; {entry.source}: {name} is not known{hint}"
    return ""


def _server_keys() -> frozenset[str]:
    return frozenset(setting.key for setting in settings_of(ServerConfig))


def _words_of(directory: Path | None) -> Callable[[str], bool]:
    """Whether a Python file of the model's directory has a word in it; the files are read at the first question."""

    @functools.cache
    def words() -> frozenset[str]:
        files = (
            []
            if directory is None
            else [file for file in directory.glob("*.py") if file.is_file() and os.access(file, os.R_OK)]
        )
        return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text("utf-8", "replace")))

    return lambda name: name in words()

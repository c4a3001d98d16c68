"""Settings on the command line: `--set dtype=fp16`, and each setting as an option of its name, `--max-model-len 2048`.

Runs in the front end, before anything is served. There is no table of options: a setting's option is its key without
`option.`, with dashes for underscores, and so is each of its other names. vLLM's spellings are among these, because LMI
took them over as `option.*`. Those without effect here are accepted with a warning that says why. `keys.vllm_names` has
vLLM's remaining options.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec

from ..core.errors import ConfigError
from ..core.faults import Faults
from ..core.names import choices, nearest
from .binding import settings_of
from .engines import all_options
from .keys.vllm_names import LEVEL, RENAMED, SEVERAL, SHORT, SWITCHES
from .keys.without_effect import OPTIONS_WITHOUT_EFFECT, SERVER_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT
from .settings.options import Options
from .settings.server import ServerConfig
from .settings.serving import ServingSettings
from .specs import ModelSpec
from .table import shown

_PREFIX: Final = "option."


@dataclass(frozen=True)
class Known:
    """A setting that the command line may name.

    Attributes:
        key: as serving.properties, or config.properties, has it.
        of_server: whether it is the server's, not a model's.
        type_words: the type of its values, as in the tables of settings; "" where it has no effect.
        help: what it is for, in a sentence.
        default: as text; "" where it is unset.
    """

    key: str
    of_server: bool
    type_words: str
    help: str
    default: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether the setting's option is a switch without a value: `--NAME` is on, `--no-NAME` off."""
        return self.type_words == "true, false" or self.key.removeprefix(_PREFIX) in SWITCHES


@dataclass(frozen=True)
class Given:
    """A setting that the command line gives. `target`: the name, or name:version, of its model; "" for all models."""

    known: Known
    value: str
    target: str = ""


@cache
def known_settings() -> Mapping[str, Known]:
    """All settings, by their names on the command line with underscores; a model's come first."""
    settings: dict[str, Known] = {}
    kinds: list[tuple[type[msgspec.Struct], str]] = [(Options, _PREFIX), (ServingSettings, "")]
    kinds += [(struct, _PREFIX) for struct in all_options().values()]
    for struct, prefix in (*kinds, (ServerConfig, "")):
        for setting in settings_of(struct, prefix):
            default = shown(setting.default)
            of_server = struct is ServerConfig
            known = Known(setting.key, of_server, setting.type_words, setting.help, default)
            for key in (setting.key, *setting.aliases):
                settings.setdefault(key.removeprefix(_PREFIX), known)
    for table, prefix in ((OPTIONS_WITHOUT_EFFECT, _PREFIX), (SERVING_WITHOUT_EFFECT, "")):
        for name, reason in table.items():
            settings.setdefault(name, Known(f"{prefix}{name}", False, "", f"has no effect: {reason}"))
    for name, reason in SERVER_WITHOUT_EFFECT.items():
        settings.setdefault(name, Known(name, True, "", f"has no effect: {reason}"))
    return settings


def plainest(key: str) -> str:
    """The name of a setting that is the easiest to type as an option: a name in lower case, if the setting has one."""
    names = [name for name, known in known_settings().items() if known.key == key]
    return next((name for name in names if name.islower()), names[0])


def option_of(name: str) -> str:
    """How a setting's name is written as an option: `max_model_len` -> `--max-model-len`."""
    return f"--{name.replace('_', '-')}"


def expanded(arguments: Sequence[str], own: Iterable[str]) -> list[str]:
    """The arguments, with `--set=KEY=VALUE` in place of each option that is a setting.

    Args:
        own: the options that the parser of the command line knows; these and unknown options are not expanded.

    Raises:
        ConfigError: an option has no value, or a switch has one that is neither true nor false.
    """
    taken = frozenset(own)
    made: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        if argument == "--":
            return [*made, argument, *rest]
        option, equals, value = argument.partition("=")
        if (level := LEVEL.fullmatch(argument)) is not None:
            option, equals, value = "-O", "=", level[1]
        if option in taken or not option.startswith("-"):
            made.append(argument)
            continue
        name, negated = _named(option)
        key, convert = RENAMED.get(name, (name, str))
        known = known_settings().get(key)
        if known is None or (negated and not known.is_switch):
            made.append(argument)
            continue
        if known.is_switch:
            value = value if equals else "true"
            if value.lower() not in ("true", "false"):
                raise ConfigError(f"{option}={value}: expected no value, or true or false")
            value = str((value.lower() == "true") is not negated).lower()
        elif not equals:
            value = rest.popleft() if rest else "--"
            if value.startswith("--"):
                raise ConfigError(f"{option}: expected a value{_explained(known)}")
        while name in SEVERAL and rest and SEVERAL[name].fullmatch(rest[0]):
            value += f",{rest.popleft()}"
        made.append(f"--set={known.key}={convert(value)}")
    return made


def _named(option: str) -> tuple[str, bool]:
    """The setting's name that an option stands for, and whether it switches it off."""
    if option in SHORT:
        return SHORT[option], False
    name = option.removeprefix("--").replace("-", "_") if option.startswith("--") else ""
    if name.startswith("no_") and name not in known_settings():
        return name.removeprefix("no_"), True
    return name, False


def read_setting(text: str) -> Given:
    """What `--set` says: KEY=VALUE, or MODEL:KEY=VALUE. `option.` may be left out where the key is declared.

    Raises:
        ConfigError: no value, or an unknown setting; the message suggests a similar name.
    """
    left, equals, value = text.partition("=")
    target, _, key = left.strip().rpartition(":")
    if not equals or not key:
        raise ConfigError(f"--set {text}: expected KEY=VALUE, or MODEL:KEY=VALUE for one of several models")
    known = known_settings().get(key.removeprefix(_PREFIX)) or known_settings().get(key.replace("-", "_"))
    if key.startswith(_PREFIX):
        if known is None or not known.key.startswith(_PREFIX):
            known = Known(key, False, "", "")  # handlers, and vLLM, read options that nobody declares
    elif known is None:
        raise ConfigError(f"--set {text}: there is no setting {key}{suggestion(key)}")
    if known.of_server and target:
        raise ConfigError(f"--set {text}: {known.key} is the server's, not a model's: expected {known.key}=VALUE")
    return Given(known, value, target)


def suggestion(name: str, options: Iterable[str] = ()) -> str:
    """'; did you mean NAME (its help)?', or where settings are listed, if no name is near.

    Args:
        options: further names, of options that are no settings.
    """
    plain = name.removeprefix("--").replace("-", "_")
    others = [*options, *RENAMED] if name.startswith("-") else options
    near = nearest(plain, [*known_settings(), *(option.removeprefix("--").replace("-", "_") for option in others)])
    if not near:
        return "; djl-serving help settings lists all of them"
    shown = option_of(near) if name.startswith("-") else near
    known = known_settings().get(RENAMED[near][0] if near in RENAMED else near)
    return f"; did you mean {shown}?{_explained(known)}" if known is not None else f"; did you mean {shown}?"


def _explained(known: Known) -> str:
    return f" ({known.key}: {known.help.rstrip('.')})" if known.help else ""


def overrides_of(given: Iterable[Given]) -> dict[str, str]:
    """The values of the server's settings, by key."""
    return {setting.known.key: setting.value for setting in given if setting.known.of_server}


def with_settings(specs: Iterable[ModelSpec], given: Iterable[Given]) -> list[ModelSpec]:
    """The models with their settings; a setting that names the model overrides one for all models.

    Raises:
        ConfigError: settings name models that do not exist; a line for each.
    """
    models, of_models = list(specs), [setting for setting in given if not setting.known.of_server]
    names = {spec: (spec.name, f"{spec.name}:{spec.version}") for spec in models}
    faults = Faults()
    for setting in of_models:
        if setting.target and not any(setting.target in of_one for of_one in names.values()):
            known = [spec.name for spec in models]
            there_is = f"there is {choices(setting.target, known)}" if known else "there is no model"
            written = f"--set {setting.target}:{setting.known.key}={setting.value}"
            faults.add([f"{written}: there is no model {setting.target}; {there_is}"])
    faults.refuse(ConfigError)
    made = []
    for spec in models:
        settings = {setting.known.key: setting.value for setting in of_models if not setting.target}
        settings |= {
            setting.known.key: setting.value
            for setting in of_models
            if setting.target and setting.target in names[spec]
        }
        made.append(msgspec.structs.replace(spec, settings=tuple(settings.items())) if settings else spec)
    return made

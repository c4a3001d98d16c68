"""SageMaker's secure mode: what a model may not have where the platform's variables forbid it.

Runs in the front end, each time a model's configuration is read, so that neither `check`, nor start, nor a model that
is registered later passes by it. Source: DJL Serving's documentation of its plug-in of this name; as there, the
directories to look through are those of SAGEMAKER_UNTRUSTED_CHANNELS. Where there is another way to the same thing here
(a template in a file of its own, an engine of the user's), it counts too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ...core.names import did_you_mean
from ..model import ModelConfig, script_names
from .variables import is_true

SECURE_MODE: Final = "SAGEMAKER_SECURE_MODE"
CONTROLS: Final = "SAGEMAKER_SECURITY_CONTROLS"
CHANNELS: Final = "SAGEMAKER_UNTRUSTED_CHANNELS"

#: Ends of names of files that unpickle, or that a library may unpickle; in any case.
PICKLES: Final = (".bin", ".ckpt", ".cloudpkl", ".jl", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
_OURS: Final = "djl_python."
#: Settings that say which Python runs, and what it finds. They are never a user's in secure mode.
_INTERPRETERS: Final = ("pythonExecutable", "env")

_Control = Callable[[ModelConfig, "list[Path]"], Iterator[str]]


def violations(config: ModelConfig, known: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """A line for each control that the model violates; [] where secure mode is off.

    Args:
        known: keys that are settings of this server, or known to have no effect; others may not be set.
    """
    if not is_true(environ.get(SECURE_MODE, "")):
        return []
    named = [name.strip() for name in environ.get(CONTROLS, "").split(",") if name.strip()]
    if not named:
        return [f"environment {SECURE_MODE}: {CONTROLS} is not set; expected some of {', '.join(_CONTROLS)}"]
    unknown = [name for name in named if name not in _CONTROLS]
    found = [
        f"environment {CONTROLS}: {name} is not known; expected some of {', '.join(_CONTROLS)}"
        f"{did_you_mean(name, _CONTROLS)}"
        for name in unknown
    ]
    channels = [Path(channel.strip()) for channel in environ.get(CHANNELS, "").split(",") if channel.strip()]
    found += [f"environment {CHANNELS}: {path} is not a directory" for path in channels if not path.is_dir()]
    found += _never(config, frozenset(known))
    for name in named:
        if name in _CONTROLS:
            found += [f"{line} ({name})" for line in _CONTROLS[name](config, channels)]
    return found


def _never(config: ModelConfig, known: frozenset[str]) -> Iterator[str]:
    """What secure mode forbids whichever controls there are."""
    for name in _INTERPRETERS:
        if name in config.properties:
            yield f"{config.where(f'option.{name}')}option.{name} may not be set in secure mode"
    for key, source in config.provenance.items():
        if source != "default" and key not in known:
            yield f"{config.where(key)}{key} may not be set in secure mode: it is not a setting of this server"


def _requirements(config: ModelConfig, channels: list[Path]) -> Iterator[str]:
    places = [*([Path(config.path)] if config.path else []), *channels]
    for name in ("requirements.txt", "requirements"):
        for path in dict.fromkeys(place / name for place in places):
            if path.exists():
                yield f"{path}: secure mode installs no requirements"


def _pickles(config: ModelConfig, channels: list[Path]) -> Iterator[str]:
    for path in _files(channels):
        if path.name.lower().endswith(PICKLES):
            yield f"{path}: secure mode takes no files of pickle's; expected weights in safetensors"


def _remote_code(config: ModelConfig, channels: list[Path]) -> Iterator[str]:
    if config.option.trust_remote_code:
        yield f"{config.said('option.trust_remote_code', 'true')}: secure mode runs no code of a checkpoint's"


def _scripts(config: ModelConfig, channels: list[Path]) -> Iterator[str]:
    option = config.option
    entry_point = option.entry_point
    if entry_point and not entry_point.startswith(_OURS) and entry_point != "text-generation":
        yield (
            f"{config.said('option.entryPoint', entry_point)}: secure mode runs no handlers of a user's; "
            "expected one of djl_python"
        )
    for key in ("rolling_batch", "tool_call_parser", "reasoning_parser"):
        value = getattr(option, key)
        if ":" in value and not value.startswith(_OURS):
            yield f"{config.said(f'option.{key}', value)}: secure mode runs no code of a user's"
    if config.path:
        for name in (*script_names(config.name), "MAR-INF"):
            if (path := Path(config.path, name)).exists():
                yield f"{path}: secure mode runs no code of a user's"


def _templates(config: ModelConfig, channels: list[Path]) -> Iterator[str]:
    if config.option.chat_template:
        yield f"{config.where('option.chat_template')}option.chat_template: secure mode takes no chat templates"
    for path in _files(channels):
        if path.suffix == ".jinja" or path.name == "chat_template.json" or _has_template(path):
            yield f"{path}: secure mode takes no chat templates"


def _has_template(path: Path) -> bool:
    if path.name not in ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        return False
    try:
        found = json.loads(path.read_bytes())
    except ValueError:  # what can't be read can't be known to be harmless
        return True
    return not isinstance(found, dict) or "chat_template" in found


def _files(directories: Iterable[Path]) -> Iterator[Path]:
    """Every file below the directories, those behind links too; none twice."""
    seen: set[str] = set()
    for directory in directories:
        for folder, folders, names in os.walk(directory, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            yield from (Path(folder, name) for name in sorted(names))


_CONTROLS: Final[Mapping[str, _Control]] = {
    "DISALLOW_REQUIREMENTS_TXT": _requirements,
    "DISALLOW_PICKLE_FILES": _pickles,
    "DISALLOW_TRUST_REMOTE_CODE": _remote_code,
    "DISALLOW_CUSTOM_INFERENCE_SCRIPTS": _scripts,
    "DISALLOW_CHAT_TEMPLATE": _templates,
}

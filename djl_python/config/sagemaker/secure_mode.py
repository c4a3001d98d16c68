"""SageMaker's secure mode: restrictions on models that the platform's variables demand.

Runs in the front end, each time a model's configuration is read: in `check`, at the start, and when a model is
registered later. Source: DJL Serving's documentation of its plug-in of this name; as there, the directories to look
through are those of SAGEMAKER_UNTRUSTED_CHANNELS. Other ways to the same thing here (a template in its own file, a
user's engine) count too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ...core.names import choices
from ..model import ModelConfig, script_names
from .variables import is_true

SECURE_MODE: Final = "SAGEMAKER_SECURE_MODE"
CONTROLS: Final = "SAGEMAKER_SECURITY_CONTROLS"
CHANNELS: Final = "SAGEMAKER_UNTRUSTED_CHANNELS"

_NO_SCRIPTS: Final = "DISALLOW_CUSTOM_INFERENCE_SCRIPTS"
#: Ends of names of files that unpickle, or that a library may unpickle; in any case.
PICKLES: Final = (".bin", ".ckpt", ".cloudpkl", ".jl", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
_OURS: Final = "djl_python."
#: Settings that choose the Python interpreter and its import path. In secure mode, users may not set them.
_INTERPRETERS: Final = ("pythonExecutable", "env")

_Control = Callable[[ModelConfig, "list[Path]"], Iterator[str]]


def violations(config: ModelConfig, known: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """A line for each control that the model violates; [] where secure mode is off.

    Args:
        known: keys that are settings of this server, or known to have no effect; others may not be set.
    """
    if not is_true(environ.get(SECURE_MODE, "")):
        return []
    named = _named_controls(environ)
    if not named:
        return [f"environment {SECURE_MODE}: {CONTROLS} is not set; expected some of {', '.join(_CONTROLS)}"]
    unknown = [name for name in named if name not in _CONTROLS]
    lines = [
        f"environment {CONTROLS}: {name} is not known; expected some of {choices(name, _CONTROLS)}" for name in unknown
    ]
    channels = [Path(channel.strip()) for channel in environ.get(CHANNELS, "").split(",") if channel.strip()]
    lines += [f"environment {CHANNELS}: {path} is not a directory" for path in channels if not path.is_dir()]
    lines += _never(config, frozenset(known))
    for name in named:
        if name in _CONTROLS:
            lines += [f"{line} ({name})" for line in _CONTROLS[name](config, channels)]
    return lines


def takes_scripts(environ: Mapping[str, str]) -> bool:
    """Whether models, and adapters that are registered later, may bring code of their own."""
    return not (is_true(environ.get(SECURE_MODE, "")) and _NO_SCRIPTS in _named_controls(environ))


def _named_controls(environ: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environ.get(CONTROLS, "").split(",") if name.strip()]


def _never(config: ModelConfig, known: frozenset[str]) -> Iterator[str]:
    """Faults that secure mode finds regardless of its controls."""
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
        yield f"{config.cite('option.trust_remote_code', 'true')}: secure mode runs no code of a checkpoint's"


def _scripts(config: ModelConfig, channels: list[Path]) -> Iterator[str]:
    option = config.option
    entry_point = option.entry_point
    if entry_point and not entry_point.startswith(_OURS) and entry_point != "text-generation":
        yield (
            f"{config.cite('option.entryPoint', entry_point)}: secure mode runs no handlers of a user's; "
            "expected one of djl_python"
        )
    for key in ("rolling_batch", "tool_call_parser", "reasoning_parser"):
        value = getattr(option, key)
        if ":" in value and not value.startswith(_OURS):
            yield f"{config.cite(f'option.{key}', value)}: secure mode runs no code of a user's"
    if config.path:
        for name in (*script_names(config.name), "MAR-INF"):
            if (path := Path(config.path, name)).exists():
                yield f"{path}: secure mode runs no code of a user's"
    for name, directory in config.adapters.items():
        if (path := Path(directory, "model.py")).exists():
            yield f"adapter {name}: {path}: secure mode runs no code of a user's"


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
        content = json.loads(path.read_bytes())
    except ValueError:  # an unreadable file may be harmful
        return True
    return not isinstance(content, dict) or "chat_template" in content


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
    _NO_SCRIPTS: _scripts,
    "DISALLOW_CHAT_TEMPLATE": _templates,
}

"""DJL's functions for loading a model directory's code, for tests and for handlers that call others.

Runs wherever the user's code runs. Modules are loaded as the worker loads them (`usercode.module`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import ModelLoadError
from ..inputs import Input
from ..usercode.module import load_user_module, put_on_path
from .output_formatter import find_decorated

#: DJL's names of decorators' marks -> the decorators.
_MARKS = {
    "is_input_formatter": "input_formatter",
    "is_output_formatter": "output_formatter",
    "is_prediction_handler": "prediction_handler",
    "is_init_handler": "init_handler",
}


class ModelService:
    """A handler's module; `invoke_handler` calls one of its functions."""

    def __init__(self, module: ModuleType, model_dir: str | None) -> None:
        self.module = module
        self.model_dir = model_dir

    def invoke_handler(self, function_name: str | None, inputs: Input) -> Any:
        """Call a function of the module, which finds the model's directory among the properties.

        Raises:
            AttributeError: the module has no such function.
        """
        if self.model_dir is not None:
            inputs.properties["model_dir"] = str(self.model_dir)
        return getattr(self.module, function_name or "handle")(inputs)


def load_model_service(model_dir: str | Path, entry_point: str, device_id: str | int = "-1") -> ModelService:
    """Import a handler: a .py file of the directory, the absolute path of one, or a module.

    `device_id` is DJL's: the handler finds its device in its properties.

    Raises:
        ValueError: the file does not exist, or is not a Python file.
        Exception: the import raised it.
    """
    folder, name = Path(model_dir), entry_point
    if Path(entry_point).is_absolute():
        folder, name = Path(entry_point).parent, Path(entry_point).name
    if not name.endswith(".py"):
        put_on_path(folder)
        return ModelService(importlib.import_module(name), str(model_dir))
    try:
        return ModelService(load_user_module(folder, name), str(model_dir))
    except ModelLoadError as exc:
        raise ValueError(exc.message) from exc


def has_function_in_module(module: ModuleType, function_name: str) -> bool:
    """Whether a module has a function of this name."""
    return callable(getattr(module, function_name, None))


def find_decorated_function(module: ModuleType, decorator_attribute: str) -> Callable[..., Any] | None:
    """The function of a module with the mark of a decorator (`is_input_formatter`, ...), or None."""
    return find_decorated(module, _MARKS.get(decorator_attribute, decorator_attribute))


def get_annotated_function(model_dir: str | Path, decorator_attribute: str) -> Callable[..., Any] | None:
    """The function of a directory's model.py with the mark of a decorator; None where there is no model.py."""
    if not Path(model_dir, "model.py").is_file():
        return None
    return find_decorated_function(load_user_module(model_dir), decorator_attribute)

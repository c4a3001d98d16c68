"""The user's own code: which file of the model directory or which module it is, and how it is imported.

Runs in the worker, in a thread: importing a `model.py` may take minutes. `djl-serving check` only looks for the file.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from ..config import ModelConfig
from ..config.model import script_names
from ..config.tasks import BUILT_IN_HANDLERS
from ..core.errors import ModelLoadError
from .engine_packages import what_brings
from .our_names import failed_name
from .remote import fetched_file, is_url
from .transformers4_shims import put_back

DEFAULT_FILE: Final = "model.py"


def user_modules(config: ModelConfig) -> Iterator[ModuleType]:
    """The user's code beside the built-in handler, each imported when it is asked for: the module or the URL that
    option.entryPoint names, if it names one and no file; then `user_file`.

    Raises:
        Exception: the import raised it.
    """
    file, entry_point = user_file(config), config.option.entry_point
    name = entry_point.partition(":")[0]
    if is_url(entry_point):
        remote = fetched_file(config)
        yield load_user_module(remote.parent, remote.name)
    elif name and entry_point not in BUILT_IN_HANDLERS and file not in (name, f"{entry_point}.py"):
        if config.path:
            put_on_path(Path(config.path))
        yield importlib.import_module(name)
    if file is not None:
        yield load_user_module(config.path, file)


def has_user_code(config: ModelConfig) -> bool:
    """Whether code of the user's may answer, or write what the built-in handler answers."""
    entry_point = config.option.entry_point
    return (bool(entry_point) and entry_point not in BUILT_IN_HANDLERS) or user_file(config) is not None


def user_file(config: ModelConfig) -> str | None:
    """The file of the model directory with the user's code: the one that option.entryPoint names, else `<name>.py` or
    model.py; None where there is none."""
    if not config.path:
        return None
    directory, entry_point = Path(config.path), config.option.entry_point
    for name in (entry_point.partition(":")[0], f"{entry_point}.py"):
        if entry_point and name.endswith(".py") and (directory / name).is_file():
            return name
    return default_file(config, directory)


def default_file(config: ModelConfig, directory: Path) -> str | None:
    """`<model name>.py` or model.py, whichever the directory has."""
    return next((name for name in script_names(config.name) if (directory / name).is_file()), None)


def existing_file(model_dir: Path, file_name: str) -> Path:
    """A file of the model directory.

    Raises:
        ModelLoadError: there is no such file.
    """
    path = model_dir / file_name
    if not path.is_file():
        raise ModelLoadError(f"the entry point {file_name} does not exist in {model_dir}")
    return path


def load_user_module(model_dir: str | Path, file_name: str = DEFAULT_FILE) -> ModuleType:
    """Import a file of the model directory under its own name ("model" for model.py), once.

    The model directory becomes the first entry of sys.path.

    Raises:
        ModelLoadError: there is no such file, it is not a Python file, or it imports a package of an engine that is
            not installed, or a name that djl_python lacks.
    """
    path = existing_file(Path(model_dir), file_name).resolve()
    name = re.sub(r"\W", "_", path.stem)
    if name in sys.modules and not _is(sys.modules[name], path):
        name = f"user_{name}"  # another module has the name, perhaps the standard library's
    known = sys.modules.get(name)
    if known is not None and _is(known, path):
        return known
    put_on_path(Path(model_dir))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"the entry point {file_name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look it up there
    try:
        put_back(path)
        spec.loader.exec_module(module)
    except BaseException as exc:
        del sys.modules[name]
        if isinstance(exc, ModuleNotFoundError) and (brings := what_brings(exc.name or "")):
            raise ModelLoadError(f"{path}: there is no module {exc.name!r}{brings}") from exc
        if fault := failed_name(path, exc):
            raise ModelLoadError(fault) from exc
        raise
    return module


def _is(module: ModuleType, path: Path) -> bool:
    return getattr(module, "__file__", None) == str(path)


def put_on_path(model_dir: Path) -> None:
    """Make the model directory the first entry of sys.path."""
    entry = str(model_dir.resolve())
    if sys.path[0] != entry:
        sys.path.insert(0, entry)

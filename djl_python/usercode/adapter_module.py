"""An adapter's own model.py: imported for each registration anew, beside the model's and other adapters'.

Runs in the worker, in the thread for the user's code. Source: LMI 0.36's "Custom input formatter schema", where a
model.py in an adapter's directory has formatters for the requests that name the adapter.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from ..core.errors import HandlerError, ModelLoadError, ServingError
from .errors import contained, one_line
from .module import DEFAULT_FILE
from .transformers4 import gone_calls
from .transformers4_shims import put_back

_numbers: Final = itertools.count(1)


def adapter_file(directory: str | Path) -> Path | None:
    """The model.py of an adapter's directory; None where it has none."""
    path = Path(directory, DEFAULT_FILE)
    return path if path.is_file() else None


def load_adapter_module(name: str, path: Path) -> ModuleType:
    """Import an adapter's file. The module has a name that no other import gets, until `forget_module`.

    While it is imported, its directory is the first entry of sys.path, and files beside it are imported anew: two
    adapters may have helpers of one name. Nothing is written into the directory.

    Raises:
        HandlerError: whatever the file raised, with the adapter's name and the file's path.
    """
    module = ModuleType(f"adapter_code_{next(_numbers)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # before it runs: dataclasses and pickle look it up there
    try:
        refusals, _ = gone_calls(path)
        if refusals:
            raise ModelLoadError("\n".join(refusals))
        put_back(path)
        with _beside(path.parent):
            # Bytecode files tell versions of a source apart by whole seconds, and an update may be faster.
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException as exc:
        forget_module(module)
        raise code_fault(name, path, exc) from exc
    return module


def code_fault(name: str, path: Path, exc: BaseException) -> HandlerError:
    """The error of an adapter's code."""
    failure = contained(exc)
    said = failure.message if isinstance(failure, ServingError) else one_line(failure)
    return HandlerError(f"adapter {name}: {path}: {said}")


def forget_module(module: ModuleType) -> None:
    """Remove a module from sys.modules. References to its functions stay valid."""
    sys.modules.pop(module.__name__, None)


@contextlib.contextmanager
def _beside(directory: Path) -> Iterator[None]:
    """Have imports find the files of a directory first, and forget them at the end: the importer has them by then."""
    files, packages = directory.glob("*.py"), directory.glob("*/__init__.py")
    own = {path.stem for path in files} | {path.parent.name for path in packages}
    own -= sys.stdlib_module_names  # other threads import those too
    aside = {name: sys.modules.pop(name) for name in _named(own)}
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        sys.dont_write_bytecode = before
        for name in _named(own):
            del sys.modules[name]
        sys.modules.update(aside)


def _named(tops: Collection[str]) -> list[str]:
    """The modules with these names, and their submodules."""
    return [name for name in sys.modules if name.partition(".")[0] in tops]

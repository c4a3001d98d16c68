"""Names that a user's file imports from djl_python and that djl_python lacks, with the module that has them.

Runs in the front end, for `djl-serving check`, and in the worker where a model's file can't be imported. Modules of
djl_python are imported to see their names; none of the user's code runs.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from ..core.names import did_you_mean

_OURS: Final = "djl_python"
_PACKAGE_DIR: Final = Path(__file__).parents[1]


def missing_names(module: str, names: Sequence[str]) -> list[str]:
    """A clause for each of the names that a module of djl_python lacks.

    There is none for a module that needs a package which is not installed: its import says so.
    """
    try:
        found = importlib.import_module(module)
    except ImportError:
        return []
    return [f"{module} has no {name!r}{_hint(name, found)}" for name in names if not _has(found, name)]


def decorating_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line of each decorator that is a module of djl_python, and a clause about it.

    LMI's output_formatter is a function in a module of the same name, so that importing the module instead is easy.
    """
    modules: dict[str, str] = {}  # bound by the statements so far
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Name) and (module := modules.get(decorator.id)):
                        use = f"from {_definitions().get(module, f'{_OURS}.{module}')} import {module}"
                        yield decorator.lineno, f"{decorator.id} is a module, not a function; use: {use}"
        for name in _bound(statement):
            modules.pop(name, None)
        if isinstance(statement, ast.ImportFrom) and not statement.level and statement.module == _OURS:
            for alias in statement.names:
                if (_PACKAGE_DIR / f"{alias.name}.py").is_file():
                    modules[alias.asname or alias.name] = alias.name


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement may bind, those of its inner statements too."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def failed_name(file: Path, exc: BaseException) -> str:
    """Why a file's import failed, where a name of djl_python is at fault: `model.py:1: ...`; else ""."""
    if not isinstance(exc, ImportError | TypeError):
        return ""
    line, traceback = 0, exc.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(file):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    faults = [fault for at, fault in _faults(ast.parse(file.read_bytes())) if at == line]
    return "; ".join(f"{file}:{line}: {fault}" for fault in faults)


def _faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == _OURS:
            for fault in missing_names(node.module or "", [alias.name for alias in node.names]):
                yield node.lineno, fault
    yield from decorating_modules(tree)


def _has(module: ModuleType, name: str) -> bool:
    if name == "*" or hasattr(module, name):
        return True
    return hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None


def _hint(name: str, module: ModuleType) -> str:
    home = _definitions().get(name)
    if home is not None:
        return f"; use: from {home} import {name}"
    return did_you_mean(name, getattr(module, "__all__", None) or [known for known in dir(module) if known[0] != "_"])


@functools.cache
def _definitions() -> Mapping[str, str]:
    """The functions and classes that djl_python's modules for handlers define -> the module; read, not imported."""
    files = [file for file in sorted((_PACKAGE_DIR / "compat").glob("*.py")) if (_PACKAGE_DIR / file.name).is_file()]
    found = {
        node.name: f"{_OURS}.{file.stem}"
        for file in (_PACKAGE_DIR / "handler.py", *files)
        for node in ast.parse(file.read_bytes()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    return found | dict.fromkeys(importlib.import_module(_OURS).__all__, _OURS)

"""The user's Python file, analysed without running it: names that it surely defines, and names that it surely lacks.

Runs in the front end, for `djl-serving check`. Much is decided only when Python runs the file, so most questions have
three answers: yes, no, and (None) that only an import can tell.
"""

from __future__ import annotations

import ast
import symtable
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..core.errors import ModelLoadError

#: Code that uses one of these may define names that the source does not show.
_DYNAMIC: Final = frozenset({"eval", "exec", "globals", "locals", "modules", "setattr", "vars", "__dict__"})
_FORMATTERS: Final = frozenset({"input_formatter", "output_formatter"})


class UserSource:
    """One parsed file.

    Attributes:
        tree: its syntax.
        functions: names of the module's public functions, in the order of the source.

    Raises:
        ModelLoadError: the file can't be read, or is not valid Python; says where.
    """

    def __init__(self, path: Path) -> None:
        try:
            source = path.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the import will show them
                compile(source, str(path), "exec", dont_inherit=True)
                self.tree = ast.parse(source)
                # It takes bytes as `compile` does: they declare their encoding.
                self._table = symtable.symtable(source, str(path), "exec")  # type: ignore[arg-type]
        except SyntaxError as exc:
            raise ModelLoadError(f"{path}:{exc.lineno or 1}: {exc.msg}") from None
        except OSError as exc:
            raise ModelLoadError(f"{path}: {exc.strerror}") from exc
        except ValueError as exc:  # a null byte, in some versions of Python
            raise ModelLoadError(f"{path}: {exc}") from None
        self._nodes = list(ast.walk(self.tree))
        self.functions = [
            node.name
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
        ]

    def has(self, name: str) -> bool | None:
        """Whether the module has an attribute of this name; None: it may have."""
        if any(_binds(table, name) for table in _tables(self._table)):
            return True
        return None if self._is_dynamic else False

    @property
    def handler_class(self) -> str | None:
        """The file's only class, if it has a method `handle`; "": no class has one; None: only an import can tell."""
        classes = [node for node in self._nodes if isinstance(node, ast.ClassDef)]
        with_handle = [node.name for node in classes if any(_is_handle(part) for part in node.body)]
        if len(classes) == len(with_handle) == 1:
            return with_handle[0]
        return None if self._is_dynamic or with_handle or any(node.bases for node in classes) else ""

    @property
    def has_formatters(self) -> bool | None:
        """Whether a function has @input_formatter or @output_formatter; None: one may, by another name or imported."""
        decorators = [
            _last_name(decorator)
            for node in self._nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for decorator in node.decorator_list
        ]
        if _FORMATTERS.intersection(decorators):
            return True
        used = any(_last_name(node) in _FORMATTERS for node in self._nodes if isinstance(node, ast.expr))
        return None if decorators or used or self._is_dynamic or self._imports_functions else False

    @property
    def _is_dynamic(self) -> bool:
        stars = (alias.name == "*" for node in self._nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
        used = (_last_name(node) in _DYNAMIC for node in self._nodes if isinstance(node, ast.expr))
        return any(stars) or any(used) or "__getattr__" in {*self._table.get_identifiers()}

    @property
    def _imports_functions(self) -> bool:
        """Whether the module may have functions of the user's other files or of third-party libraries."""
        origins = (
            "" if node.level else (node.module or "").partition(".")[0]
            for node in self._nodes
            if isinstance(node, ast.ImportFrom)
        )
        return any(origin not in sys.stdlib_module_names and origin != "djl_python" for origin in origins)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _binds(table: symtable.SymbolTable, name: str) -> bool:
    """Whether code of this scope binds `name` in the module."""
    try:
        symbol = table.lookup(name)
    except KeyError:
        return False
    made = symbol.is_assigned() or symbol.is_imported()
    return made and (table.get_type() == "module" or symbol.is_declared_global())


def _is_handle(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "handle"


def _last_name(node: ast.expr) -> str:
    """`c` for the expressions c, a.b.c, c(...) and a.b.c(...)."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

"""Tests have names that say what breaks, and use what the code they test shows to its other users."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.packaging.documents import ROOT
from tests.packaging.test_transformers_names import USED

#: With these, a name has no subject, or needs the test above it.
NO_SUBJECTS: Final = frozenset(
    "who whom whose whoever what whatever which it its one nobody he she they them those these this that others "
    "neither nor and or but so then".split()
)
PRIVATE: Final = re.compile(r"_[A-Za-z]\w*")
#: Libraries' names with an underscore that tests use, with the reason.
LIBRARIES_NAMES: Final = {
    "_replace": "a method that named tuples document",
    "_exit": "a function that os documents",
    "_name": "an attribute that ctypes documents: the file of a library that was loaded",
    "_is_quantized": "transformers marks the configuration of a model that has codes with it",
    "_forward_hooks": "torch does not tell in another way whether a module has hooks",
    "_python_dispatch": "torch's module of TorchDispatchMode, which its documentation names",
}
#: Names of transformers that the code depends on, each of which has a test.
TRANSFORMERS_NAMES: Final = frozenset(name for used in USED if PRIVATE.fullmatch(name := used.name.rpartition(".")[2]))
#: They take an attribute's name as text.
BY_NAME: Final = frozenset({"getattr", "setattr", "hasattr", "delattr", "object"})


class Names(NamedTuple):
    """The names of a file's tests, and the private names that it uses of others."""

    path: Path
    tests: Sequence[str]
    private: Sequence[str]


@functools.cache
def files() -> Sequence[Names]:
    """Each file of the tests; its tree is not kept."""
    made = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        made.append(Names(path.relative_to(ROOT), [*names_of_tests(tree)], private_names(tree)))
    return made


def names_of_tests(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


def test_names_of_tests_begin_with_what_breaks() -> None:
    """As in `test_a_cancelled_sequence_frees_its_blocks`: subject, verb, object."""
    wrong = [f"{path}: {name}" for path, names, _ in files() for name in names if name.split("_")[1] in NO_SUBJECTS]
    assert wrong == []


def own_names(tree: ast.AST) -> set[str]:
    """The names of methods and attributes that a file's classes define."""
    own = set()
    for each in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(each):
            match node:
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.Name(name, ast.Store()):
                    own.add(name)
                case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                    own.add(name)
    return own


def names_used(tree: ast.AST) -> Iterator[str]:
    """The names of others that a file imports, reads, sets or patches, without the modules before them."""
    own = own_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), name) if name in own:
                pass
            case ast.Attribute(_, name):
                yield name
            case ast.ImportFrom(module, names):
                yield from (module or "").split(".")
                yield from (each.name for each in names)
            case ast.Call(ast.Name(called) | ast.Attribute(_, called), [*given]) if called in BY_NAME:
                for each in given:
                    match each:
                        case ast.Constant(str(text)):
                            yield text.rpartition(".")[2]


def private_names(tree: ast.AST) -> list[str]:
    return [name for name in names_used(tree) if PRIVATE.fullmatch(name)]


def test_tests_use_no_private_names() -> None:
    """A private name is changed without a look at its users. What a test needs of a unit is the unit's contract: then
    its name is public, and it has a docstring."""
    allowed = {*LIBRARIES_NAMES, *TRANSFORMERS_NAMES}
    wrong = [f"{path}: {name}" for path, _, names in files() for name in names if name not in allowed]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "from djl_python.engine.loop import _step",
        "from djl_python.engine._loop import step",
        "assert batch._sequences == {}",
        "class Batch(PagedRollingBatch):\n    def read(self):\n        return self._sequences",
        "monkeypatch.setattr(loop, '_step', None)",
        "monkeypatch.setattr('djl_python.engine.loop._STEP_S', 1)",
    ],
)
def test_private_names_are_seen(source: str) -> None:
    assert private_names(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "class Own:\n    def __init__(self):\n        self._mine = 1\n    def read(self):\n        return self._mine",
        "class Own:\n    _MINE = 1\n    async def _read(self):\n        return self._MINE, await self._read()",
        "from djl_python import __version__",
    ],
)
def test_a_test_files_classes_may_have_private_names(source: str) -> None:
    assert private_names(ast.parse(source)) == []

"""The modules that the user's files import when they are imported themselves, and which of them nobody has.

Runs in the front end, for `djl-serving check`. Read from the sources: nothing is imported. What is imported only under
some condition, or with an `except ImportError`, may be missing.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from ..core.names import did_you_mean
from .engine_packages import what_brings
from .our_names import decorating_modules, missing_names

#: Names that an `except` may have that lets a missing module pass; "" is an except without any.
_CAUGHT: Final = frozenset({"", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
#: A requirement's name, and its marker or version after it; not options (-r, -e), nor files and URLs.
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*(?:[<>=!~;@ ].*)?$")
#: A command that installs something, or its first word.
_PIP: Final = re.compile(r"^pip3?$|\bpip3? install\b|^install$")
_OURS: Final = "djl_python"
#: Modules of LMI's djl_python that its handlers consist of.
_INTERNAL_TO_LMI: Final = tuple(
    """
    adapter_custom_code_manager adapter_formatter_mixin adapter_manager_mixin arg_parser aws bedrock
    custom_formatter_handling custom_handler_service import_utils lmcache_utils lmi_trtllm lmi_vllm multimodal
    neuron_utils properties_manager python_async_engine python_sync_engine rolling_batch sagemaker scheduler
    seq_scheduler session_utils stable_diffusion_inf2 transformers_neuronx_scripts
    """.split()
)


@dataclass(frozen=True)
class _Import:
    """An import that surely runs. `level`: the dots of a relative one; `names`: what `from` takes of the module."""

    line: int
    module: str
    level: int = 0
    names: tuple[str, ...] = ()


def import_faults(file: Path, tree: ast.Module, model_dir: Path) -> list[str]:
    """A line for each import of the file, and of the files beside it that it imports, which will fail.

    None where that can't be told: a file changes `sys.path` or runs pip, or requirements of the model are not installed
    yet whose modules nobody knows.
    """
    if may_bring_more(model_dir):
        return []
    faults: list[str] = []
    for path, statement in _all_imports(file, tree, model_dir):
        top = statement.module.partition(".")[0]
        if statement.level:  # the file is imported by itself, and belongs to no package
            faults.append(f"{path}:{statement.line}: a relative import, in a file that is in no package")
        elif not module_exists(statement.module if top == _OURS else top, model_dir):
            faults.append(_missing(path, statement, model_dir))
        elif top == _OURS:
            faults += [
                f"{path}:{statement.line}: {fault}" for fault in missing_names(statement.module, statement.names)
            ]
    return [*faults, *(f"{file}:{line}: {fault}" for line, fault in decorating_modules(tree))]


def imported_packages(file: Path, model_dir: Path) -> set[str]:
    """Top-level names of what the file, and the files beside it that it imports, import whenever they are imported.

    None where that can't be told.
    """
    tree = _parsed(file)
    imports = [] if tree is None else _all_imports(file, tree, model_dir)
    return {statement.module.partition(".")[0] for _, statement in imports if not statement.level}


def _all_imports(file: Path, tree: ast.Module, model_dir: Path) -> list[tuple[Path, _Import]]:
    """The imports of the file and of the files beside it that it imports; none where one brings modules itself."""
    imports: list[tuple[Path, _Import]] = []
    seen = {file.resolve()}
    waiting = [(file, tree)]
    while waiting:
        path, parsed = waiting.pop(0)
        if any(_finds_more(node) for node in ast.walk(parsed)):
            return []
        for statement in _imports(parsed.body):
            beside = model_dir / f"{statement.module.partition('.')[0]}.py"
            if not statement.level and beside.is_file() and beside.resolve() not in seen:
                seen.add(beside.resolve())
                if (other := _parsed(beside)) is not None:
                    waiting.append((beside, other))
            else:
                imports.append((path, statement))
    return imports


def _missing(path: Path, statement: _Import, model_dir: Path) -> str:
    top = statement.module.partition(".")[0]
    if top == _OURS:
        of_lmi = any(f"{statement.module}.".startswith(f"{_OURS}.{name}.") for name in _INTERNAL_TO_LMI)
        hint = "; it is a part of LMI's own handlers" if of_lmi else did_you_mean(statement.module, _ours())
        return f"{path}:{statement.line}: there is no module {statement.module!r}{hint}"
    requirements = model_dir / "requirements.txt"
    brings = f"{requirements} brings it not" if requirements.is_file() else f"there is no {requirements} to bring it"
    known = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), *_beside(model_dir)}
    return (
        f"{path}:{statement.line}: there is no module {top!r}: it is not installed, not in {model_dir}, and {brings}"
        f"{what_brings(top) or did_you_mean(top, known)}"
    )


def _ours() -> list[str]:
    return [f"{_OURS}.{path.stem}" for path in Path(__file__).parents[1].glob("[!_]*")]


def _beside(model_dir: Path) -> Iterator[str]:
    return (path.stem for path in model_dir.glob("*.py"))


def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # its import says so


def _finds_more(node: ast.AST) -> bool:
    """Whether code like this may bring modules: it says where to look for them, or runs pip."""
    match node:
        case ast.Attribute(value=ast.Name("sys"), attr="path") | ast.Attribute(value=ast.Name("site")):
            return True
        case ast.Constant(value=str(text)):
            return _PIP.search(text) is not None
        case ast.alias(name=name):
            return name.partition(".")[0] in ("pip", "site")
    return False


def _imports(body: Sequence[ast.stmt]) -> Iterator[_Import]:
    """The imports that run whenever `body` does."""
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (_Import(node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, level=level, names=names):
                yield _Import(node.lineno, module or "", level, tuple(alias.name for alias in names))
            case ast.Try(body=inner, handlers=handlers, finalbody=final):
                if not any(_catches(handler) for handler in handlers):
                    yield from _imports(inner)
                yield from _imports(final)
            case ast.With(body=inner):
                if not any("suppress" in ast.unparse(item.context_expr) for item in node.items):
                    yield from _imports(inner)
            case ast.ClassDef(body=inner):
                yield from _imports(inner)


def _catches(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(("" if kind is None else ast.unparse(kind)) in _CAUGHT for kind in kinds)


def module_exists(module: str, model_dir: Path | None) -> bool:
    """Whether an import would find the module, in the model's directory or in this Python; imports its package."""
    top, _, rest = module.partition(".")
    own = [] if model_dir is None else [str(model_dir)]
    # Not where this command happens to be run, which `python -m` puts first.
    places = [*own, *(place for place in sys.path if place and Path(place) != Path.cwd())]
    exists = any(
        finder.find_spec(top, places if finder is PathFinder else None) is not None
        for finder in sys.meta_path
        if hasattr(finder, "find_spec")
    )
    if not exists or not rest:
        return exists
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package on its way
        return False


def may_bring_more(model_dir: Path | None) -> bool:
    """Whether the model's requirements bring modules that are not here yet, or may."""
    return any(not name or not _installed(name) for name in required(model_dir))


def required(model_dir: Path | None) -> Iterator[str]:
    """The names that the model's requirements.txt has, line by line; "" for an option, a file or a URL."""
    requirements = Path() if model_dir is None else model_dir / "requirements.txt"
    if not requirements.is_file():
        return
    for line in requirements.read_text("utf-8", "replace").splitlines():
        text = line.partition(" #")[0].strip()
        if text and not text.startswith("#"):
            named = _REQUIREMENT.match(text)
            yield "" if named is None else named[1]


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

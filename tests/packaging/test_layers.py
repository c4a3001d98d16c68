"""The architecture as a test: who may import whom, and where the few sharp tools may be used."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import djl_python
from djl_python.dialects import DIALECTS

ROOT = Path(__file__).resolve().parents[2]

#: Rooms in a room whose layer is another than that of the room.
INNER = {"compat.services"}
#: DJL's name of a module, directly in djl_python -> its room. Users import these names, and nothing of ours does.
FACES = {
    **dict.fromkeys(
        ("async_utils", "encode_decode", "input_parser", "np_util", "output_formatter", "pair_list"), "compat"
    ),
    **dict.fromkeys(("request", "request_io", "service_loader", "session_manager", "sm_log_filter"), "compat"),
    **dict.fromkeys(("telemetry", "test_model", "utils"), "compat"),
    **dict.fromkeys(("huggingface", "sklearn_handler", "streaming_utils", "xgboost_handler"), "compat.services"),
}
#: Other names of DJL's HuggingFaceService.
LMI_HANDLERS = {"deepspeed", "fastertransformer", "tensorrt_llm", "transformers_neuronx"}
#: Every module and package of ours, lowest layer first. "" is djl_python/__init__.py. Imports point down, or sideways
#: within a layer except where APART says no.
LAYERS = (
    {"core", "ipc", "config", "fetching", "formats", "gguf", "sources"},
    {"", "usercode", "inputs", "outputs", "compat", "chat_completions", "properties_manager"},
    {"handler", "dialects", "text", "engine", "batch"},
    {"worker", "server", "handlers", "pipelines"},
    {"compat.services", "rolling_batch"},
    {"agent", "cli", "commands", "testing", "bench", "offline", "terminal", "doctor", "__main__"},
    {*FACES, *LMI_HANDLERS},
)
#: Groups whose members never import one another.
APART = (
    {"engine", "text", "dialects"},
    {"server", "worker", "handlers", "pipelines"},
    {"engine", "server", "pipelines"},
)
#: The engine's rooms, lowest first; modules directly in `engine` are what is above them, or small helpers of all.
ROOMS = (
    *("devices", "attention", "batch", "sampling", "checkpoints", "adapters", "runner"),
    *("reading.recipe", "reading", "reading.watching", "reading.inference"),
    *("native", "native.program", "native.modules", "native.opening", "native.api"),
    *("torch_backend", "opening", "drafting", "parallel", "builtin", "encoding", "deepspeed", "vllm", "trtllm"),
)
#: Rooms that could be a package of their own: all that the rest imports of them is one module.
WING = {"native", "reading"}
DOOR = "native.api"
#: What still imports a room above its own. The list may only get shorter.
UPWARD: set[tuple[str, str]] = set()
#: Packages of the front end, and what each may import of the others.
FRONT_END = {
    "server.metrics": set[str](),
    "server.environments": set[str](),
    "server.keys": {"server.metrics"},
    "server.models": {"server.metrics"},
    "server.dispatch": {"server.models", "server.routes", "server.spans"},
    "server.pulling": {"server.models"},
    "server.tls": set[str](),
    "server.access": set[str](),
    "server.connections": set[str](),
    "server.responses": {"server.models", "server.dispatch", "server.keys", "server.spans", "server.disk"},
    "server.http": {"server.metrics", "server.models", "server.routes", "server.spans", "server.keys", "server.view"}
    | {"server.access", "server.connections", "server.dispatch", "server.responses", "server.tls"},
    "server.batches": {"server.metrics", "server.models", "server.http", "server.routes", "server.spans"}
    | {"server.dispatch", "server.disk", "server.keys"},
    "server.management": {"server.metrics", "server.models", "server.http"},
    "server.console": {"server.models", "server.http", "server.management"},
}
#: Libraries that belong to one side of the house. DJL's HuggingFaceService has its model where the user's code is:
#: `pipelines`, and its one function that returns a type of torch's.
LIBRARIES = {
    "torch": {"engine", "pipelines", "compat.services"},
    "accelerate": {"engine"},
    "transformers": {"engine", "handlers", "text", "pipelines"},
    "llguidance": {"engine"},
    "vllm": {"engine"},
    "deepspeed": {"engine"},
    "tensorrt_llm": {"engine"},
    "tornado": {"server", "bench"},
    "prometheus_client": {"server"},
    "opentelemetry": {"server"},
    "prompt_toolkit": {"terminal"},
    "rich": {"terminal", "doctor", "offline"},
    "shtab": {"terminal"},
    "cryptography": {"server"},
    "ray": {"agent"},
}
#: The boundaries, where any error becomes an answer: the worker's service, its thread for the user's code, and what it
#: has the engine's events call; the engine's loop, and opening a model with other ranks; a replica. And what puts
#: an error of the user's into words, and reads clients' images with Pillow. DJL's decorator for a step of a rolling
#: batch, which is one by contract.
BOUNDARIES = {
    "djl_python/rolling_batch/rolling_batch.py",
    *(
        "djl_python/worker/service.py",
        "djl_python/worker/thread.py",
        "handlers/answer.py",
        "handlers/decoding/generation.py",
    ),
    *("djl_python/engine/loop.py", "djl_python/engine/async_loop.py"),
    *("djl_python/engine/parallel/rank.py", "djl_python/engine/parallel/ranks.py"),
    *("djl_python/server/models/replica.py", "djl_python/usercode/errors.py", "handlers/images/sources.py"),
}


@dataclass(frozen=True)
class Module:
    """One source file; `name` is dotted and absolute, `unit` its row in LAYERS."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    @functools.cached_property
    def imports(self) -> list[tuple[int, str]]:
        """(line, absolute module name) of everything imported, at top level or not."""
        return list(self._read_imports())

    def _read_imports(self) -> Iterator[tuple[int, str]]:
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = package.split(".")
                    base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
                for alias in node.names:
                    # "from . import loop" imports a module, "from .loop import run" a name of one.
                    yield node.lineno, f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base


def unit_of(name: str) -> str:
    parts = name.split(".")
    if (inner := ".".join(parts[1:3])) in INNER:
        return inner
    return parts[1] if len(parts) > 1 else ""


def is_module(name: str) -> bool:
    parts = name.split(".")
    if parts[:2] == ["djl_python", "handlers"]:
        parts = parts[1:]
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


@functools.cache
def modules() -> list[Module]:
    parsed = []
    for folder, prefix in (("djl_python", ""), ("handlers", "djl_python.")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT).with_suffix("")
            name = prefix + ".".join(relative.parts).removesuffix(".__init__")
            parsed.append(Module(path, name, ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return parsed


def where(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


def layer_of(unit: str) -> int:
    return next(number for number, units in enumerate(LAYERS) if unit in units)


def test_every_module_has_a_layer() -> None:
    known = set().union(*LAYERS)
    assert sorted({module.unit for module in modules()} - known) == []


def test_imports_point_down() -> None:
    wrong = []
    for module in modules():
        for line, name in module.imports:
            if name.split(".")[0] != "djl_python":
                continue
            target = unit_of(name)
            if target and layer_of(target) > layer_of(module.unit):
                wrong.append(f"{where(module, line)}: {module.name} imports {name}, which is above it")
    assert wrong == []


def test_djls_modules_have_djls_names() -> None:
    """The same module by both, so that what a handler replaces in one of them is replaced for all."""
    rooms = {module.name.removeprefix("djl_python.") for module in modules() if module.path.name != "__init__.py"}
    assert {f"{room}.{name}" for name, room in FACES.items()} == {
        name for name in rooms if name.rpartition(".")[0] in FACES.values()
    }
    for name, room in FACES.items():
        module = importlib.import_module(f"djl_python.{room}.{name}")
        assert importlib.import_module(f"djl_python.{name}") is module
        assert vars(djl_python)[name] is module


def room_of(name: str) -> str:
    """The room of the engine that a module is in; "" where it is in none."""
    inside = name.removeprefix("djl_python.engine.")
    return next((room for room in sorted(ROOMS, key=len, reverse=True) if f"{inside}.".startswith(f"{room}.")), "")


def test_the_engines_rooms_import_downwards() -> None:
    imports = set()
    for module in modules():
        for _, name in module.imports:
            own, other = (room_of(one) if one.startswith("djl_python.engine.") else "" for one in (module.name, name))
            if own and other and ROOMS.index(other) > ROOMS.index(own):
                imports.add((module.name.removeprefix("djl_python.engine."), name.removeprefix("djl_python.engine.")))
    assert imports == UPWARD


def test_the_native_wing_has_one_door() -> None:
    wrong = []
    for module in modules():
        if room_of(module.name).split(".")[0] in WING:
            continue
        for line, name in module.imports:
            room = room_of(name) if name.startswith("djl_python.engine.") else ""
            if room.split(".")[0] in WING and room != DOOR:
                wrong.append(f"{where(module, line)}: {module.name} imports {name}, but not by {DOOR}")
    assert wrong == []


def cycles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of nodes that all reach one another."""
    components: set[frozenset[str]] = set()
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
            if other in path:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            members = path[path.index(node) :]
            del path[-len(members) :]
            if len(members) > 1:
                components.add(frozenset(members))

    for node in graph:
        if node not in number:
            visit(node)
    return components


def test_no_modules_import_one_another() -> None:
    """Not for type checkers only either: two modules that know each other's types are one in two files."""
    names = {module.name for module in modules()}
    graph = {
        module.name.removeprefix("djl_python."): {
            name.removeprefix("djl_python.") for _, name in module.imports if name in names - {module.name}
        }
        for module in modules()
    }
    assert cycles(graph) == set()


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "c", "c": "a"}, ["abc"]),
        ({"a": "bc", "b": "d", "c": "d", "d": ""}, []),
        ({"a": "b", "b": "acd", "c": "d", "d": "c"}, ["ab", "cd"]),
        ({"c": "b", "b": "a", "a": "b"}, ["ab"]),
        ({"a": "b", "b": "cd", "c": "b", "d": "a"}, ["abcd"]),
    ],
)
def test_cycles_are_found(graph: dict[str, str], expected: list[str]) -> None:
    assert cycles({node: set(others) for node, others in graph.items()}) == set(map(frozenset, expected))


def test_the_front_ends_packages_import_in_one_direction() -> None:
    wrong = []
    for module in modules():
        own = ".".join(module.name.split(".")[1:3])
        for line, name in module.imports:
            other = ".".join(name.split(".")[1:3])
            if own in FRONT_END and other.startswith("server.") and other not in FRONT_END[own] | {own}:
                wrong.append(f"{where(module, line)}: {module.name} imports {name}")
    assert wrong == []


def test_no_folder_has_too_many_modules_to_look_through() -> None:
    """But for the package itself, which has the names that users import."""
    counts = Counter(module.path.parent for module in modules() if module.path.name != "__init__.py")
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > 16}
    assert set(crowded) == {"djl_python"}


def test_neighbours_that_are_strangers() -> None:
    wrong = []
    for module in modules():
        for line, name in module.imports:
            target = unit_of(name) if name.startswith("djl_python.") else module.unit
            if target != module.unit and any({module.unit, target} <= group for group in APART):
                wrong.append(f"{where(module, line)}: {module.name} imports {name}")
    assert wrong == []


def dialect_of(name: str) -> str:
    """The dialect whose module this is; "" where it is not one dialect's."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["djl_python", "dialects"] and parts[2:3] and parts[2] in DIALECTS else ""


def test_no_module_imports_a_dialect_but_its_own() -> None:
    """To delete one, delete its row and its folder: what it alone has is asked of it (decision 11)."""
    assert set(DIALECTS) == {dialect_of(module.name) for module in modules()} - {""}
    wrong = [
        f"{where(module, line)}: {name}"
        for module in modules()
        for line, name in module.imports
        if dialect_of(name) not in ("", dialect_of(module.name))
    ]
    assert wrong == []


def test_config_reads_and_downloads_nothing() -> None:
    """Who needs a model gets it (`sources`), and gives its directory to be read."""
    networks = {"http", "socket", "ssl", "urllib.request", "urllib.error", "huggingface_hub", "boto3"}
    wrong = [
        f"{where(module, line)}: {name}"
        for module in modules()
        if module.unit == "config"
        for line, name in module.imports
        if name.startswith(("djl_python.sources", "djl_python.fetching")) or {name, name.split(".")[0]} & networks
    ]
    assert wrong == []


def test_libraries_stay_on_their_side() -> None:
    wrong = []
    for module in modules():
        for line, name in module.imports:
            allowed = LIBRARIES.get(name.split(".")[0])
            if allowed is not None and module.unit not in allowed:
                wrong.append(f"{where(module, line)}: {name} belongs to {', '.join(sorted(allowed))}")
    assert wrong == []


def test_handlers_have_one_name() -> None:
    """`import handlers` would make a second copy of what is installed as djl_python.handlers."""
    wrong = [
        where(module, line)
        for module in modules()
        for line, name in module.imports
        if name.split(".")[0] in ("handlers", "serving_templates")
    ]
    assert wrong == []


def test_environment_is_read_in_config_only() -> None:
    wrong = []
    for module in modules():
        if module.unit == "config":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                names = [alias.name for alias in node.names]
            else:
                continue
            if {"environ", "environb", "getenv", "putenv", "unsetenv"} & set(names):
                wrong.append(where(module, node.lineno))
    assert wrong == []


EVERYTHING = {"Exception", "BaseException"}


def names_in(*nodes: ast.AST) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def ends_with_a_raise(handler: ast.ExceptHandler) -> bool:
    returns = any(isinstance(part, ast.Return) for part in ast.walk(handler))
    return isinstance(handler.body[-1], ast.Raise) and not returns


def catches_everything(node: ast.AST) -> bool:
    """Whether whatever is raised may end here.

    What catches BaseException, to clean up, may end with a raise; an Exception is not caught for that either. A context
    manager catches where its exit says anything but None or False.
    """
    match node:
        case ast.ExceptHandler(type=None):
            return not ends_with_a_raise(node)
        case ast.ExceptHandler(type=ast.expr() as caught):
            names = names_in(caught)
            return "Exception" in names or ("BaseException" in names and not ends_with_a_raise(node))
        case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress")):
            return bool(EVERYTHING & names_in(*node.args))
        case ast.FunctionDef(name="__exit__") | ast.AsyncFunctionDef(name="__aexit__"):
            returns = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
            return any(value is not None and ast.unparse(value) not in ("None", "False") for value in returns)
    return False


def test_only_boundaries_catch_everything() -> None:
    by_file: dict[str, list[str]] = {}
    for module in modules():
        for node in ast.walk(module.tree):
            if catches_everything(node):
                by_file.setdefault(str(module.path.relative_to(ROOT)), []).append(where(module, node.lineno))  # type: ignore[attr-defined]
    assert [places for file, places in by_file.items() if file not in BOUNDARIES] == []
    assert set(by_file) == BOUNDARIES


@pytest.mark.parametrize(
    ("code", "catches"),
    [
        ("try: f()\nexcept Exception: g()", True),
        ("try: f()\nexcept Exception: raise", True),
        ("try: f()\nexcept (KeyError, Exception) as e: raise ValueError from e", True),
        ("try: f()\nexcept BaseException: g()", True),
        ("try: f()\nexcept BaseException:\n    g()\n    raise", False),
        ("def h():\n  try: f()\n  except BaseException:\n    if g(): return\n    raise", True),
        ("try: f()\nexcept: g()", True),
        ("try: f()\nexcept:\n    g()\n    raise", False),
        ("try: f()\nexcept ValueError: g()", False),
        ("with contextlib.suppress(BaseException): f()", True),
        ("with suppress(KeyError, Exception): f()", True),
        ("with suppress(KeyError): f()", False),
        ("class C:\n    def __exit__(self, *_): return True", True),
        ("class C:\n    async def __aexit__(self, *_): return self.x", True),
        ("class C:\n    def __exit__(self, *_): return None", False),
        ("class C:\n    def __exit__(self, *_): self.close()", False),
    ],
)
def test_handlers_that_catch_everything_are_found(code: str, catches: bool) -> None:
    assert any(map(catches_everything, ast.walk(ast.parse(code)))) == catches


def test_no_module_called_utils() -> None:
    """But for a public name of DJL's, which handlers import."""
    names = [module.name for module in modules() if module.name.endswith((".utils", ".helpers", ".common"))]
    assert names == ["djl_python.compat.utils", "djl_python.utils"]


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("djl_python", ["torch", "tornado", "transformers"]),
        ("djl_python.cli", ["torch", "transformers"]),
        ("djl_python.huggingface, djl_python.streaming_utils", ["torch", "transformers", "tornado"]),
        ("djl_python.sklearn_handler, djl_python.xgboost_handler", ["sklearn", "xgboost", "torch", "transformers"]),
        ("djl_python.engine", ["torch", "transformers"]),
        ("djl_python.engine.client", ["torch", "transformers", "tornado"]),
        ("djl_python.worker.__main__", ["torch", "transformers", "tornado"]),
        ("djl_python.handlers.text_generation", ["torch", "transformers", "tornado"]),
        ("djl_python.handlers.encoding.handler", ["torch", "transformers", "tornado"]),
    ],
)
def test_an_import_does_not_load_heavy_packages(imported: str, absent: list[str]) -> None:
    """The front end and a plain worker start in a fraction of a second because nothing heavy comes along."""
    program = f"import sys, {imported}; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")

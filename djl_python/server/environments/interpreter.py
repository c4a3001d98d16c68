"""Interpreters for workers: their version, and the packages that they have or lack.

Runs in the front end, in a thread: an interpreter is started for it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ...config import PROCESS_NEEDS, ModelConfig
from ...config.tasks import BUILT_IN_HANDLERS
from ...core.errors import ModelLoadError
from ...usercode.engine_packages import engine_with
from ...usercode.imports import imported_packages, module_exists, required
from ...usercode.module import user_file

#: The oldest that this project runs on; setup.cfg says the same.
LEAST_PYTHON: Final = (3, 11, 4)
#: Packages that the built-in handler and its engine also need. torch is never installed unasked: users choose a build.
BUILT_IN_NEEDS: Final = (
    *("accelerate>=1.1", "jinja2>=3.1", "llguidance>=1.9", "numpy>=1.26", "psutil>=5.9"),
    *("torch>=2.6", "transformers>=5.9,<6"),
)
_PROBE_TIMEOUT_S: Final = 60

#: Runs in the interpreter, which may be of any age. `stock` has the names of what is installed, with their versions.
_PROBE: Final = """
import json, os, sys
facts = {"version": list(sys.version_info[:3]), "build": sys.version, "prefix": sys.prefix}
if sys.version_info >= (3, 8):
    import importlib.util, site
    from importlib import metadata
    facts["is_venv"] = sys.prefix != sys.base_prefix
    facts["has_pip"] = importlib.util.find_spec("pip") is not None
    facts["sites"] = [path for path in site.getsitepackages() if path in sys.path]
    facts["stock"] = sorted(
        name for path in sys.path if os.path.isdir(path or "?") for name in os.listdir(path)
        if name.endswith((".dist-info", ".egg-info", ".pth"))
    )
    for name in sys.argv[1:]:
        try:
            facts.setdefault("versions", {})[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
sys.stdout.write("\\n" + json.dumps(facts) + "\\n")
"""


class Interpreter(msgspec.Struct, frozen=True):
    """A Python interpreter.

    Attributes:
        executable: how it is started.
        version: major, minor, micro.
        build: `sys.version`.
        prefix: the folder that it is installed in.
        is_venv: whether it is that of a virtual environment.
        has_pip: whether `-m pip` works.
        sites: folders of its own packages.
        stock: names and versions of all packages that it finds.
        versions: those of the packages that it was asked for, by name.
    """

    executable: str
    version: tuple[int, int, int]
    build: str
    prefix: str
    is_venv: bool = False
    has_pip: bool = False
    sites: tuple[str, ...] = ()
    stock: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    def lacks(self, needs: Sequence[str]) -> tuple[str, ...]:
        """The requirements that it does not meet, among the packages that it was asked for."""
        return tuple(need for need in needs if not meets(self.versions.get(name_of(need)), need))


def interpreter_of(config: ModelConfig, environment: Mapping[str, str], needs: Sequence[str]) -> Interpreter:
    """The interpreter that a model names, that of an engine whose package its code imports, or the server's own; asked
    for the packages that it needs.

    Args:
        environment: what it is started in.

    Raises:
        ModelLoadError: it can't be used; one line says why.
    """
    named = config.option.python_executable
    where = f"{config.provenance.get('option.pythonExecutable', 'option')}: option.pythonExecutable={named}"
    executable = named or engines_python(config) or sys.executable
    if "/" in executable:
        executable = str(Path(config.path, executable).absolute())  # one that is relative is the model's
    else:
        executable = shutil.which(executable, path=environment.get("PATH")) or executable
    try:
        interpreter = asked(executable, environment, needs)
    except ModelLoadError as error:
        raise ModelLoadError(f"{where}: {error.message}" if named else error.message) from error
    if interpreter.version < LEAST_PYTHON:
        is_this, least = (".".join(map(str, version)) for version in (interpreter.version, LEAST_PYTHON))
        raise ModelLoadError(f"{where}: this is Python {is_this}, and workers need {least} or newer")
    return interpreter


def engines_python(config: ModelConfig) -> str:
    """The interpreter of an installed engine's environment, for code that imports the engine's package; "": there is
    none, or this server or the model's requirements.txt has the package, or the model names an interpreter."""
    file = user_file(config)
    if file is None or config.option.python_executable:
        return ""
    directory = Path(config.path)
    for module in sorted(imported_packages(directory / file, directory) - set(required(directory))):
        engine = engine_with(module)
        if engine is not None and not module_exists(module, directory):
            runtime = engine.runtime(config.cache_dir)
            return "" if runtime is None else runtime.executable
    return ""


def asked(executable: str, environment: Mapping[str, str], needs: Sequence[str]) -> Interpreter:
    """An interpreter's description of itself.

    Raises:
        ModelLoadError: it does not start, or does not answer as an interpreter.
    """
    command = [executable, "-c", _PROBE, *map(name_of, needs)]
    try:
        done = subprocess.run(
            command, capture_output=True, cwd="/", env=environment, timeout=_PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        answer = json.loads((done.stdout.splitlines() or [b""])[-1])
        return msgspec.convert({"executable": executable, **answer}, Interpreter)
    except OSError as exc:
        raise ModelLoadError(f"{executable}: {exc.strerror}") from exc
    except subprocess.TimeoutExpired as exc:
        raise ModelLoadError(f"{executable} did not answer within {_PROBE_TIMEOUT_S} s") from exc
    except (ValueError, TypeError) as exc:  # another program prints anything, or nothing
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ModelLoadError(f"{executable} is no Python interpreter that works: {reason}") from exc


def needs_of(config: ModelConfig) -> tuple[str, ...]:
    """The packages that a model's workers import, apart from the user's own."""
    entry_point = config.option.entry_point
    built_in = entry_point in BUILT_IN_HANDLERS or not (entry_point or user_file(config))
    return (*PROCESS_NEEDS, *BUILT_IN_NEEDS) if built_in else PROCESS_NEEDS


def name_of(need: str) -> str:
    """The package's name in a requirement."""
    return re.split(r"[<>=]", need, maxsplit=1)[0]


def meets(version: str | None, need: str) -> bool:
    """Whether a package's version meets a requirement; None: it is not installed."""
    if version is None:
        return False
    numbers = _numbers(version)
    for bound in need.removeprefix(name_of(need)).split(","):
        if bound.startswith(">=") and numbers < _numbers(bound[2:]):
            return False
        if bound.startswith("<") and numbers >= _numbers(bound[1:]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """A version's release: 2.6.0+cpu -> 2, 6, 0."""
    matched = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, matched[0].split("."))) if matched else ()

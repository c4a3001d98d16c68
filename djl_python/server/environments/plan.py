"""Plans what to install for a model, and where, without installing anything.

Runs in the front end, in a thread, before a model's workers start, and for `djl-serving check`.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...config import ENVIRONMENT_STAMP, ModelConfig, is_offline, venv_directory, worker_environment
from ...core.errors import ModelLoadError
from ...core.faults import Faults
from .interpreter import Interpreter, engines_python, interpreter_of, meets, name_of, needs_of
from .requirements import Requirements, pins, requirements_of


@dataclass(frozen=True)
class EnvironmentPlan:
    """How a model's environment is made.

    Attributes:
        interpreter: the one that the model names, or the server's own.
        needs: the requirements of workers.
        lacking: those of these that it lacks. They are installed too, unless the requirements bring them.
        requirements: those of the model's directory.
        venv: the model's own environment, over the interpreter's packages; None: the interpreter is used as it is,
            and is what is installed into, if anything is.
        lock: the file to lock while installing there.
        environment: variables of the workers, and of pip.
        directory: where pip runs.
    """

    interpreter: Interpreter
    needs: tuple[str, ...]
    lacking: tuple[str, ...]
    requirements: Requirements | None
    venv: Path | None
    lock: Path
    environment: Mapping[str, str]
    directory: str

    @property
    def installs(self) -> bool:
        """Whether pip is needed at all."""
        return self.requirements is not None or bool(self.lacking)

    def arguments(self) -> tuple[str, ...]:
        """The arguments of `pip install` for the model's requirements, as in DJL.

        Offline, without a folder of packages, what a requirement itself requires is taken to be there.
        """
        assert self.requirements is not None
        alone = is_offline(self.environment) and self.requirements.packages is None
        return (*self.index(), *(("--no-deps",) if alone else ()), "-r", str(self.requirements.file))

    def index(self) -> tuple[str, ...]:
        """Where `pip install` looks for packages, in addition to its settings; offline, only in the model's folder."""
        if self.requirements is None or self.requirements.packages is None:
            return ()
        return (*(("--no-index",) if is_offline(self.environment) else ()), "-f", str(self.requirements.packages))

    @property
    def executable(self) -> str:
        """The interpreter of the model's workers."""
        return str(self.venv / "bin" / "python") if self.venv else self.interpreter.executable

    @property
    def complete(self) -> bool:
        """Whether everything is installed. A shared interpreter never counts as complete: others change it too."""
        return (self.venv / ENVIRONMENT_STAMP).is_file() if self.venv else not self.installs

    def described(self) -> str:
        """The plan as `check` prints it: indented lines."""
        version = ".".join(map(str, self.interpreter.version))
        lines = [("interpreter", f"{self.interpreter.executable} (Python {version})")]
        if self.lacking:
            lines.append(("lacks", f"{', '.join(self.lacking)}: installed too, but for torch"))
        if self.requirements is not None:
            beside = f", with what is in {self.requirements.packages}" if self.requirements.packages else ""
            lines.append(("installs", f"{self.requirements.file}{beside}"))
        if self.venv:
            when = "made already" if self.complete else "made when the model is loaded"
            lines.append(("into", f"{self.venv} ({when})"))
        elif self.installs:
            lines.append(("into", f"{self.interpreter.prefix} itself (option.enable_venv=false)"))
        return "\n".join(f"  {name:11}  {value}" for name, value in lines)

    def check_torch(self, lacking: Sequence[str]) -> None:
        """Refuse to install torch along with other packages: the user chooses its build.

        Raises:
            ModelLoadError: it is lacking too.
        """
        if any(name_of(need) == "torch" for need in lacking):
            raise self.refusal(lacking, "torch is not installed unasked")

    def refusal(self, lacking: Sequence[str], why: str) -> ModelLoadError:
        """The error that workers can't run, for lack of these packages."""
        command = shlex.join([self.interpreter.executable, "-m", "pip", "install", *lacking])
        return ModelLoadError(
            f"{self.interpreter.executable} lacks {', '.join(lacking)}, which workers need; {why}: {command}"
        )


def plan_of(config: ModelConfig) -> EnvironmentPlan | None:
    """The plan for a model. None: its workers run as the server does.

    Raises:
        ModelLoadError: they can't run with the interpreter that the model names, or with its requirements, or these
            can't be read.
        ConfigError: there is no place for an environment.
    """
    requirements = requirements_of(config)
    if requirements is None and not config.option.python_executable and not engines_python(config):
        return None
    needs, environment = needs_of(config), worker_environment(config)
    if requirements is not None:
        _check_pins(requirements, needs)
    interpreter = interpreter_of(config, environment, needs)
    lacking = interpreter.lacks(needs)
    directory = venv_directory(config.cache_dir)
    plan = EnvironmentPlan(
        interpreter,
        needs,
        lacking,
        requirements,
        None,
        directory / f"{_key(interpreter.prefix)}.lock",
        environment,
        config.path or "/",
    )
    if requirements is None:
        plan.check_torch(lacking)
    if lacking and is_offline(environment) and not (requirements and requirements.packages):
        raise plan.refusal(lacking, "nothing is fetched (DJL_OFFLINE)")
    if not config.option.enable_venv or not plan.installs:
        return plan
    content = requirements.digest() if requirements else ""
    build = (interpreter.executable, interpreter.build, *interpreter.stock)
    offline = "offline" if is_offline(environment) else ""
    key = _key(*build, content, *lacking, offline)
    return replace(plan, venv=directory / key, lock=directory / f"{key}.lock")


def _check_pins(requirements: Requirements, needs: Sequence[str]) -> None:
    """Refuse versions that workers can't run with, before anything is installed.

    Raises:
        ModelLoadError: a line for each.
    """
    wanted, faults = {name_of(need): need for need in needs}, Faults()
    for line, name, version in pins(requirements):
        if (need := wanted.get(name)) is not None and not meets(version, need):
            faults.add([f"{requirements.file}:{line}: {name}=={version} does not go with {need}, which workers need"])
    faults.refuse()


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]

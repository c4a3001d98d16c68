"""A model's own environment: the interpreter of its workers, and what is installed for them before they start.

Runs in the front end. `requirements` reads what a model's directory asks for, `interpreter` what a Python has and
lacks, `plan` puts the two together, and `installing` makes what is missing, with pip. `engines` makes the environments
of engines, for the command line (`command`); both use `processes`. `ipc.package_path` is how `djl_python` itself comes
to any interpreter. A server that may not install anything refuses a model where `requirements_of` finds something.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

from ...config import ModelConfig, Runtime
from ...config.sources import cache_root
from ...core.errors import ModelLoadError
from ...ipc.package_path import package_path
from .installing import install
from .plan import EnvironmentPlan, plan_of
from .processes import Progress
from .requirements import Requirements, requirements_of

__all__ = ["EnvironmentPlan", "Requirements", "plan_of", "prepare", "requirements_of"]


async def prepare(config: ModelConfig, progress: Progress, turns: asyncio.Semaphore | None = None) -> ModelConfig:
    """The configuration with what the model's workers run with, once that is there.

    Args:
        progress: gets what is being installed, and pip's lines.
        turns: limits how many models' packages are installed at a time; None: no limit.

    Raises:
        ModelLoadError: the interpreter can't be used, or what the model requires can't be installed.
        ConfigError: there is no place for it.
    """
    plan = await asyncio.to_thread(plan_of, config)
    if plan is None:
        return config
    async with turns or contextlib.nullcontext():
        await install(plan, progress)
    try:
        package = package_path(cache_root(Path(config.cache_dir) if config.cache_dir else None))
    except OSError as exc:
        raise ModelLoadError(f"{exc.filename}: {exc.strerror}; DJL_CACHE_DIR says where downloads go") from exc
    runtime = Runtime(executable=plan.executable, venv=str(plan.venv) if plan.venv else "", package_path=str(package))
    return msgspec.structs.replace(config, runtime=runtime)

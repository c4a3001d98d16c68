"""DeepSpeed's compiled extensions, and its output. Runs in the engine process, at load.

DeepSpeed compiles an extension when it is first used, for minutes, into a directory that all processes share
(TORCH_EXTENSIONS_DIR, which the engine's row makes one of ours). torch marks a build with a file, which a killed build
leaves behind: every later build would wait for it for ever. So extensions are loaded here first, under a lock of the
operating system, which ends with its process. Under that lock no other build runs, so any mark is old.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import deepspeed.ops
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.utils import logger

from ...config import extensions_directory
from ...core.errors import ModelLoadError

log = logging.getLogger(__name__)

#: torch's mark of a build, in the extension's own folder.
_MARK: Final = "lock"
_SHARED_MEMORY: Final = "deepspeed_shm_comm"


def load_async_io() -> None:
    """Load the extension that reads and writes NVMe.

    Raises:
        ModelLoadError: it can't be compiled here.
    """
    builder = AsyncIOBuilder()
    if not builder.is_compatible(verbose=False):
        raise ModelLoadError(
            "offloading to NVMe is compiled when it is first used, for which libaio's headers are missing: "
            "apt-get install libaio-dev, or dnf install libaio-devel"
        )
    _load(builder)


def load_kernels() -> None:
    """Have the inference kernels ready.

    Raises:
        ModelLoadError: they can't be compiled here.
    """
    from deepspeed.ops.op_builder import InferenceBuilder

    builder = InferenceBuilder()
    if not builder.is_compatible(verbose=False):
        raise ModelLoadError(f"DeepSpeed's kernels can't be compiled here: {builder.error_log}")
    _load(builder)


def _load(builder: Any) -> None:
    with _alone():
        try:
            builder.load(verbose=False)
        except (RuntimeError, ImportError, OSError, ValueError) as exc:
            raise ModelLoadError(f"DeepSpeed's {builder.name} can't be compiled here: {exc}") from exc


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Context in which no other process of this server loads an extension."""
    folder = extensions_directory()
    if folder is None:  # the user's own interpreter, without a row's environment
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".djl-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_marks(folder)
        yield


def _remove_marks(folder: Path) -> None:
    for mark in folder.glob(f"*/{_MARK}"):
        log.info("%s is left of a build that was killed", mark)
        mark.unlink(missing_ok=True)


def prepare_process() -> None:
    """Have DeepSpeed log as we do, from warnings on.

    On CPUs it adds up by torch's gloo, without an operator over shared memory that takes minutes to compile.
    """
    deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # of functions that DeepSpeed calls


@contextlib.contextmanager
def logging_prints() -> Iterator[None]:
    """Context in which printed lines go to the log at a low level."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
        log.debug("%s", line)

"""For tests that need native kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from djl_python.engine.native.compiling import compiler, processors_here
from djl_python.engine.native.library import KernelsUnavailableError

T = TypeVar("T")


def kernels_or_skip(find: Callable[[], T]) -> T:
    """What `find` finds with the kernels' help. Skips where there can be none; that they don't compile is a failure."""
    try:
        return find()
    except KernelsUnavailableError as reason:
        if processors_here() and compiler() is not None:
            raise
        pytest.skip(str(reason))

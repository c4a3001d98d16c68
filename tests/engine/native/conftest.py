"""Native kernels need a processor and a compiler; without them these tests have nothing to test.

All of them run on the kernels that this machine would build, and on those that one with AVX2 alone would.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from djl_python.engine.attention import register
from djl_python.engine.native import build
from djl_python.engine.native.build import UnavailableError, library


@pytest.fixture(autouse=True, scope="session", params=["widest", "avx2"])
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "avx2":
            patch.setattr(build, "_FLAGS", (*build._FLAGS, "-mno-avx512f"))
        try:
            built = library.__wrapped__()
        except UnavailableError as reason:
            pytest.skip(str(reason))
        patch.setattr("djl_python.engine.native.pool.library", lambda: built)
        register()
        yield

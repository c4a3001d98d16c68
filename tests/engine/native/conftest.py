"""Native kernels need a processor and a compiler; without them these tests have nothing to test.

All of them run on the kernels for this machine's processor, on those for the least that there are any for, and on those
that multiply tiles: in software, where the processor can't. `make test` runs representative models, on the
first of these kernels more than on the others; what needs no model it runs on the first alone. Modules whose tests run
no kernels have a `_kernels` of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from djl_python.engine.attention.lookup import register
from djl_python.engine.native import library as finding
from djl_python.engine.native.compiling import PROCESSORS, TILES, processors_here
from djl_python.engine.native.library import find_library
from tests.checkpoints import NATIVE, OF_EACH_KIND, REPRESENTATIVE
from tests.kernels import kernels_or_skip

VARIANTS = ("best", "least", "tiles")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        models = NATIVE.keys() & {value for value in given.values() if isinstance(value, str)}
        best = given.get("_kernels", "best") == "best"
        if models - (REPRESENTATIVE if best else OF_EACH_KIND) or not (best or models):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="package", params=VARIANTS)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    here = processors_here()
    if request.param == "least":
        if here[:1] == [PROCESSORS[-1]]:
            pytest.skip("the kernels for this processor are the least that there are")
        here = here[-1:]
    elif request.param == "tiles":
        if here and here[0].features >= TILES:
            pytest.skip("the kernels for this processor multiply tiles")
        here = [one._replace(name="tiles", flags=(*one.flags, "-DDJL_TILES_IN_SOFTWARE")) for one in here[:1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "processors_here", lambda: here)
        kernels = kernels_or_skip(find_library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("djl_python.engine.native.thread_pool.library", lambda: kernels)
        register()
        yield

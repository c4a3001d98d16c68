"""A certificate that all tests here share."""

from __future__ import annotations

import pytest

from tests.certificates import Pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair.made(tmp_path_factory.mktemp("tls") / "pair")

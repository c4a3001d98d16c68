"""Which clients are on this machine."""

from __future__ import annotations

import pytest

from djl_python.server.access.clients import UNIX, is_local, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("LocalHost", True), ("0.0.0.0", False), ("example.com", False)]
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", UNIX])
def test_a_client_behind_a_proxy_is_not_local(client: str) -> None:
    assert is_local({"host": "localhost"}, client)
    for name in ("x-forwarded-for", "x-forwarded-host", "true-client-ip", "cf-connecting-ip", "cdn-loop"):
        assert not is_local({"host": "localhost", name: "127.0.0.1"}, client)

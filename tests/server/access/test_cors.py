"""The headers for pages of other origins."""

from __future__ import annotations

import pytest

from djl_python.config import ServerConfig
from djl_python.server.access.cors import Cors

ORIGIN = "Access-Control-Allow-Origin"


@pytest.mark.parametrize(
    ("allowed", "origin", "expected"),
    [
        ("", "https://a.example", {}),
        ("*", "https://a.example", {ORIGIN: "*"}),
        ("*", None, {ORIGIN: "*"}),
        ("https://a.example,https://b.example", "https://b.example", {ORIGIN: "https://b.example", "Vary": "Origin"}),
        ("https://a.example", "https://c.example", {"Vary": "Origin"}),
        ("https://a.example", None, {"Vary": "Origin"}),
    ],
)
def test_an_origin_is_named_where_it_is_allowed(allowed: str, origin: str | None, expected: dict[str, str]) -> None:
    assert Cors(ServerConfig(cors_allowed_origin=allowed)).headers(origin) == expected


def test_configured_methods_and_headers_replace_the_requested_ones() -> None:
    cors = Cors(ServerConfig(cors_allowed_origin="*", cors_allowed_methods="GET", cors_allowed_headers="x-a"))
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert cors.headers("https://a.example") == {
        ORIGIN: "*",
        "Access-Control-Allow-Methods": "GET",
        "Access-Control-Allow-Headers": "x-a",
    }
    assert cors.preflight({**asked, "access-control-request-headers": "x-b"}, ["POST"]) == {
        "Access-Control-Max-Age": "600"
    }
    assert cors.preflight({"origin": "https://a.example"}, ["POST"]) == {}  # no preflight

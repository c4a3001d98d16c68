"""What command lines and the environment say of every request."""

from __future__ import annotations

import argparse

import pytest

from djl_python.bench.arguments import header, headers_of


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("", [], {}),
        (" sesame ", [], {"Authorization": "Bearer sesame"}),
        ("sesame", ["x-tenant: a:b"], {"x-tenant": "a:b", "Authorization": "Bearer sesame"}),
        ("sesame", ["authorization: Basic eA=="], {"authorization": "Basic eA=="}),
    ],
)
def test_the_key_of_the_environment_goes_where_the_command_line_has_none(
    monkeypatch: pytest.MonkeyPatch, key: str, given: list[str], expected: dict[str, str]
) -> None:
    monkeypatch.setenv("DJL_API_KEY", key)
    assert headers_of(argparse.Namespace(header=[header(one) for one in given])) == expected

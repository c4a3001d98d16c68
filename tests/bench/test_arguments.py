"""What command lines and the environment say of every request."""

from __future__ import annotations

import argparse

import pytest

from djl_python.bench.arguments import add_headers, headers_of


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
    monkeypatch.delenv("DJL_SERVING_API_KEY", raising=False)
    parser = argparse.ArgumentParser()
    add_headers(parser)
    assert headers_of(parser.parse_args([f"--header={one}" for one in given])) == expected


def test_the_key_of_the_command_line_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJL_API_KEY", "sesame")
    parser = argparse.ArgumentParser()
    add_headers(parser)
    assert headers_of(parser.parse_args(["--api-key", "other"])) == {"Authorization": "Bearer other"}


def test_a_server_on_the_same_machine_has_its_key_in_the_same_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJL_API_KEY", raising=False)
    monkeypatch.setenv("DJL_SERVING_API_KEY", "first, second")
    parser = argparse.ArgumentParser()
    add_headers(parser)
    assert headers_of(parser.parse_args([])) == {"Authorization": "Bearer first"}

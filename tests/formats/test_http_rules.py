from __future__ import annotations

import pytest

from djl_python.formats.http_rules import preferred

JSON, CSV, LIST = "application/json", "text/csv", "tensor/ndlist"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JSON),
        (" , ", JSON),
        ("*/*", JSON),
        ("application/json, text/plain, */*", JSON),  # axios
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),  # a browser
        ("text/html, image/gif, *; q=.2, */*; q=.2", JSON),  # Java
        ("Text/CSV ; charset=utf-8", CSV),
        ("text/*", CSV),
        ("text/csv, application/json", JSON),  # alike: what is offered first
        ("application/json;q=0.5, text/csv;q=0.9", CSV),
        ("text/csv, */*;q=0.1", CSV),
        ("application/json;q=0, */*", CSV),
        ("text/csv;q=0, application/*;q=0.0, */*", LIST),
        ("text/csv;header=present;q=0.4, tensor/ndlist;q=1.0", LIST),
        ("text/csv;q=none", CSV),
        ("image/png", None),
        ("application/json;q=0", None),
    ],
)
def test_the_accept_header_chooses_the_content_type(accept: str, expected: str | None) -> None:
    assert preferred(accept, (JSON, CSV, LIST)) == expected

"""What is read of a request's first lines."""

from __future__ import annotations

import pytest
from tornado import httputil

from djl_python.core.errors import PayloadError
from djl_python.server.http.requests.request_head import RequestHead


def head(target: str = "/", *headers: tuple[str, str], version: str = "HTTP/1.1") -> RequestHead:
    received = httputil.HTTPHeaders()
    for name, value in headers:
        received.add(name, value)
    return RequestHead(httputil.RequestStartLine("POST", target, version), received)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ()),
        ("/a%20b", "/a%20b", ()),
        ("/a?b=1&c=&b=%20", "/a", (("b", "1"), ("c", ""), ("b", " "))),
        ("http://host:80/a?b=1", "/a", (("b", "1"),)),
        ("http://host", "/", ()),
        ("/a?to=http://host/b", "/a", (("to", "http://host/b"),)),
        ("/http://host/b", "/http://host/b", ()),
        ("*", "*", ()),
    ],
)
def test_a_target_is_a_path_and_a_query(target: str, path: str, query: tuple[tuple[str, str], ...]) -> None:
    read = head(target)
    assert (read.method, read.path, read.query, read.version) == ("POST", path, query, "HTTP/1.1")


def test_headers_have_names_in_lower_case_and_values_of_one_name_are_joined() -> None:
    read = head("/", ("Accept", "text/plain"), ("X-Name", "a"), ("accept", "*/*"))
    assert read.headers == {"accept": "text/plain,*/*", "x-name": "a"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "", "a-b.example_c~%20"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    head("/", ("Host", host)).check_host()


@pytest.mark.parametrize("hosts", [["a", "b"], ["a,b"], ["a b"], ["a/b"], ["a@b"]])
def test_a_missing_or_ambiguous_host_is_refused(hosts: list[str]) -> None:
    with pytest.raises(PayloadError, match="not one host"):
        head("/", *(("Host", host) for host in hosts)).check_host()


def test_http_1_1_needs_a_host() -> None:
    head("/", version="HTTP/1.0").check_host()
    with pytest.raises(PayloadError, match="needs a Host header"):
        head("/").check_host()


@pytest.mark.parametrize(
    ("given", "version", "waits", "for_tornado"),
    [
        ("100-continue", "HTTP/1.1", True, "100-continue"),
        ("100-Continue", "HTTP/1.1", True, "100-continue"),
        ("100-continue", "HTTP/1.0", False, None),
        ("200-ok", "HTTP/1.1", False, "200-ok"),
    ],
)
def test_a_client_may_hold_its_body_back(given: str, version: str, waits: bool, for_tornado: str | None) -> None:
    read = head("/", ("Expect", given), version=version)
    assert (read.expects_continue(), read.received.get("Expect")) == (waits, for_tornado)
    assert not head("/").expects_continue()

"""Opening URLs of models: private addresses are fine, metadata addresses are not, at any hop."""

from __future__ import annotations

import http.server
import threading
import urllib.error
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from djl_python.fetching.models import open_url

REFUSED = "link-local address or a cloud's metadata address"


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with the request's Host, or redirects to `to`."""

    def do_GET(self) -> None:
        to = parse_qs(urlsplit(self.path).query).get("to")
        self.send_response(302 if to else 200)
        if to:
            self.send_header("Location", to[0])
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server on 127.0.0.1 with `Answers`."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield httpd.server_port
        httpd.shutdown()
        thread.join()


def test_the_checked_address_is_connected_to(port: int) -> None:
    answers = [["127.0.0.2", "127.0.0.1"], ["169.254.169.254"]]
    with open_url(f"http://models.test:{port}/", 5, lambda *_: answers.pop(0)) as response:
        assert response.read() == f"models.test:{port}".encode()
    with pytest.raises(urllib.error.URLError, match=REFUSED):
        open_url(f"http://models.test:{port}/", 5, lambda *_: answers.pop(0))


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "0xa9fea9fe", "2852039166", "[::ffff:169.254.169.254]", "[fe80::1]"]
)
def test_metadata_is_refused_at_any_hop(host: str, port: int) -> None:
    for url in (f"http://{host}/", f"https://{host}/", f"http://127.0.0.1:{port}/?to=http://{host}/"):
        with pytest.raises(urllib.error.URLError, match=REFUSED):
            open_url(url, 5)


def test_through_a_proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("no_proxy", raising=False)
    with open_url("http://models.test/", 5) as response:
        assert response.read() == b"models.test"
    with pytest.raises(urllib.error.URLError, match=REFUSED):
        open_url("http://169.254.169.254/", 5)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_other_schemes(url: str, port: int) -> None:
    with pytest.raises(urllib.error.URLError, match="unknown url type"):
        open_url(url, 5)
    with pytest.raises(urllib.error.URLError):
        open_url(f"http://127.0.0.1:{port}/?to={url}", 5)

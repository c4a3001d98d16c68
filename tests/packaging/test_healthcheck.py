"""docker/healthcheck.py, the image's health check, run as Docker runs it."""

from __future__ import annotations

import runpy
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from djl_python.testing import free_port
from tests.certificates import Pair

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "healthcheck.py"


class Alive(BaseHTTPRequestHandler):
    """Answers 200 where the health check asks, 503 elsewhere."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/live" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep standard error clean."""


class Lost(Alive):
    """Answers that only a new container helps."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], pair: Pair | None = None) -> Iterator[int]:
    """A server, over HTTPS with a pair; yields its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def checked(address: str) -> subprocess.CompletedProcess[str]:
    """The check where the server's address is in the environment, and no server has a command line that names one."""
    without = f"import runpy, sys; main = runpy.run_path({str(SCRIPT)!r})['main']; "
    without += "main.__globals__['server_command'] = list; sys.exit(main())"
    environment = {"SERVING_INFERENCE_ADDRESS": address}
    command = [sys.executable, "-I", "-c", without]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_http() -> None:
    with listening(Alive) as port:
        for address in (f"http://0.0.0.0:{port}", f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"):
            assert checked(address).returncode == 0, address


def test_https_with_a_certificate_of_another_name(tmp_path: Path) -> None:
    pair = Pair.made(tmp_path / "pair", "llm.example.com")
    with listening(Alive, pair) as port:
        result = checked(f"https://0.0.0.0:{port}")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_server_that_does_not_answer_is_not_alive() -> None:
    with listening(Lost) as port:
        lost = checked(f"http://127.0.0.1:{port}")
    assert (lost.returncode, lost.stderr.count("\n")) == (1, 1)
    gone = checked(f"http://127.0.0.1:{free_port()}")
    assert (gone.returncode, "refused" in gone.stderr) == (1, True)
    assert checked("unix:/nowhere/djl.sock").returncode == 1


@pytest.mark.parametrize(
    ("command", "port"),
    [
        (["djl-serving", "-m", "a", "-p", "9000"], 9000),
        (["python", "/usr/bin/djl-serving", "--port=9001"], 9001),
        (["djl-serving", "--port", "9002", "-m", "a"], 9002),
        (["djl-serving", "-m", "a"], None),
        ([], None),
    ],
)
def test_the_port_of_a_command_line(command: list[str], port: int | None) -> None:
    assert runpy.run_path(str(SCRIPT))["port_of"](command) == port

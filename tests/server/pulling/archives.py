"""A server of a model's archive, over a real connection, whose second half comes when a test says so."""

from __future__ import annotations

import contextlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: More than what is downloaded between two reports.
SIZE = 6 << 20


class Archives(ThreadingHTTPServer):
    """Serves /pulled.zip; nothing else is there.

    Attributes:
        asked: the paths of the requests.
        may_end: set unless a test holds the second half back.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as archive:
            archive.writestr("model.py", "")
            archive.writestr("weights", b"\0" * SIZE)
        self.archive = written.getvalue()
        self.asked: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/pulled.zip"


class _Handler(BaseHTTPRequestHandler):
    server: Archives

    def do_GET(self) -> None:
        served = self.server
        served.asked.append(self.path)
        if self.path != "/pulled.zip":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(served.archive)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        half = SIZE // 2
        with contextlib.suppress(ConnectionError):  # a client that has the archive reads the head alone
            self.wfile.write(served.archive[:half])
            served.may_end.wait(20)
            self.wfile.write(served.archive[half:])

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@contextlib.contextmanager
def archives() -> Iterator[Archives]:
    with Archives() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.may_end.set()
            made.shutdown()
            thread.join()

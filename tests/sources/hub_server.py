"""One repository behind the part of the hub's API that its client uses, over a real connection, with a test's files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

REPO: Final = "owner/name"
COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves these files; those that are long are in the large file storage.

    Attributes:
        may_end: set unless a test holds the second half of large files back.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.may_end = threading.Event()
        self.may_end.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def _is_large(content: bytes) -> bool:
    return len(content) > 1000


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in (f"/api/models/{REPO}", f"/api/models/{REPO}/revision/main"):
            siblings = [self._entry(name, "rfilename", "sha256") for name in self.server.files]
            self._json({"id": REPO, "sha": COMMIT, "siblings": siblings})
        elif path == f"/api/models/{REPO}/tree/{COMMIT}":
            self._json([{"type": "file", **self._entry(name, "path", "oid")} for name in self.server.files])
        else:
            self._file(path)

    do_HEAD = do_GET

    def _entry(self, name: str, called: str, hash_called: str) -> dict[str, Any]:
        content = self.server.files[name]
        entry: dict[str, Any] = {called: name, "size": len(content), "oid": "1" * 40, "blobId": "1" * 40}
        if _is_large(content):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {hash_called: digest, "size": len(content), "pointerSize": 134}
        return entry

    def _json(self, value: object) -> None:
        self._answer(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str) -> None:
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/").removeprefix(f"/{REPO}/resolve/main/")
        if (content := self.server.files.get(name)) is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if path.startswith(f"/{REPO}/") else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        digest = hashlib.sha256(content).hexdigest() if _is_large(content) else hashlib.sha1(content).hexdigest()
        self._answer(content, {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"})

    def _answer(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        half = len(content) // 2
        self.wfile.write(content[:half])
        self.wfile.flush()
        if _is_large(content):
            self.server.may_end.wait(20)
        self.wfile.write(content[half:])

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@contextlib.contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer(files) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.may_end.set()
            made.shutdown()
            thread.join()

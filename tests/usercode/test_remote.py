"""A file that option.entryPoint names by its URL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.usercode import remote


class Files(BaseHTTPRequestHandler):
    """Answers with what `served` has for the path."""

    def do_GET(self) -> None:
        content = self.server.served.get(self.path)  # type: ignore[attr-defined]
        self.send_response(404 if content is None else 200)
        self.send_header("content-length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def files() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Files)
    server.served = {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    remote.fetched_once.cache_clear()


def config_of(files: HTTPServer, path: str, cache: Path) -> ModelConfig:
    url = f"http://127.0.0.1:{files.server_port}{path}"
    return ModelConfig(name="m", option=Options(entry_point=url), cache_dir=str(cache))


def test_a_remote_file_is_stored_as_model_py(files: HTTPServer, tmp_path: Path) -> None:
    files.served["/mine.py?v=1"] = b"x = 1\n"  # type: ignore[attr-defined]
    file = remote.fetched_file(config_of(files, "/mine.py?v=1", tmp_path))
    assert (file.name, file.read_text()) == ("model.py", "x = 1\n")
    assert file.is_relative_to(tmp_path)
    assert [one.name for one in file.parent.iterdir()] == ["model.py"]


def test_each_url_has_a_place_of_its_own(files: HTTPServer, tmp_path: Path) -> None:
    files.served.update({"/a.py": b"a = 1\n", "/b.py": b"b = 1\n"})  # type: ignore[attr-defined]
    one, other = (remote.fetched_file(config_of(files, path, tmp_path)) for path in ("/a.py", "/b.py"))
    assert one.read_text() == "a = 1\n" and other.read_text() == "b = 1\n"


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("/gone.py?token=hidden", None, r"/gone\.py: the server answered 404 Not Found$"),
        ("/long.py", b"#" * (remote.MAX_BYTES + 1), "longer than"),
    ],
)
def test_a_remote_file_that_can_not_be_downloaded_is_refused(
    files: HTTPServer, tmp_path: Path, path: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        files.served[path] = content  # type: ignore[attr-defined]
    with pytest.raises(ModelLoadError, match=message) as caught:
        remote.fetched_file(config_of(files, path, tmp_path))
    assert "hidden" not in caught.value.message

"""Models registered from every kind of URL, and what is said of those that can't be."""

from __future__ import annotations

import functools
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.harness import Site, running
from tests.server.in_process import InProcess


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    async with running(placement=InProcess(), directories=True) as made:
        yield made


@pytest.fixture
def www(tmp_path: Path) -> Iterator[str]:
    """Serves tmp_path, with a modification time as its only sign of a change."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def zipped(path: Path, *names: str, batch_size: int = 1) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names or ("root/model.py",):
            archive.writestr(name, "")
        archive.writestr("root/serving.properties", f"batch_size={batch_size}\n")
    return path


def tarred(path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.addfile(tarfile.TarInfo("model.py"), io.BytesIO())
    return path


async def register(site: Site, url: str, **parameters: str) -> httpx.Response:
    return await site.client.post("/models", params={"url": url, "model_name": "a", **parameters})


async def test_every_kind(site: Site, tmp_path: Path, www: str) -> None:
    directory = tmp_path / "a directory"
    directory.mkdir()
    (directory / "model.py").touch()
    archives = [zipped(tmp_path / "m.zip"), tarred(tmp_path / "m.tar"), tarred(tmp_path / "m.tar.gz", "w:gz")]
    urls = [str(directory), directory.as_uri(), f"file:{directory}", *map(str, archives), archives[0].as_uri()]
    urls += [f"{www}/{archive.name}?signature=secret" for archive in archives]
    for url in urls:
        answer = await register(site, url)
        assert answer.status_code == 200, (url, answer.text)
        assert (await site.post("/predictions/a", do="echo")).status_code == 200
        assert "secret" not in (await site.client.get("/models/a")).text
        await site.client.delete("/models/a")


async def test_a_changed_archive_is_fetched_again(site: Site, tmp_path: Path, www: str) -> None:
    for size, again in (("1", "false"), ("2", "true")):
        zipped(tmp_path / "m.zip", batch_size=int(size))
        assert (await register(site, f"{www}/m.zip", reload=again)).status_code == 200
        assert f'"batchSize": {size}' in (await site.client.get("/models/a")).text


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("evil.zip", 400, "entry '../../evil' points outside of the model"),
        ("text.zip", 400, "neither a zip nor a tar archive"),
        ("cut.zip", 400, "neither a zip nor a tar archive"),
        ("empty.zip", 400, "nothing to serve"),
        ("none.zip", 404, "no such file or directory"),
        ("{www}/none.zip", 404, "the server answered 404"),
        ("{www}/evil.zip", 400, "entry '../../evil' points outside of the model"),
        ("{www}/text.zip", 400, "neither a zip nor a tar archive"),
        ("http://127.0.0.1:1/m.zip", 400, "can't be downloaded: "),
        ("zoo://ai.djl/mlp", 400, "scheme 'zoo' is not known; expected one of file, hf, http, https, ollama"),
        ("djl://ai.djl/mlp", 400, "DJL's model zoo is not here; expected a checkpoint, as in hf://mlp"),
        ("http://user:hidden@127.0.0.1/m.zip", 400, "expected no user and password in the URL"),
    ],
)
async def test_a_wrong_url_is_refused_and_leaves_nothing(
    site: Site, tmp_path: Path, www: str, url: str, status: int, message: str
) -> None:
    zipped(tmp_path / "evil.zip", "../../evil")
    zipped(tmp_path / "empty.zip", "README.md")
    (tmp_path / "text.zip").write_text("no archive")
    (tmp_path / "cut.zip").write_bytes(zipped(tmp_path / "m.zip").read_bytes()[:-10])
    full = url.format(www=www) if "://" in url or "{" in url else str(tmp_path / url)
    answer = await register(site, full)
    assert answer.status_code == status and message in answer.json()["message"], answer.text
    assert "hidden" not in answer.text
    assert set(site.models) == {"m:"}
    assert not list(tmp_path.rglob("evil")) and not list(tmp_path.rglob(".partial-*"))

"""Where models come from: real files, a real HTTP server, and the hub client told to stay offline."""

from __future__ import annotations

import http.server
import io
import os
import pwd
import string
import subprocess
import sys
import tarfile
import tempfile
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from djl_python.config.sources import scheme_of, shown_url
from djl_python.core.errors import ConfigError, SourceError
from djl_python.core.registry import load_object
from djl_python.sources import fetch_model, http_archives, local_path, path_here, s3
from djl_python.sources.finding import SOURCES, ModelSource
from tests.conftest import DEMO


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def make_zip(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return path


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


class TestLocalPath:
    """option.model_id -> directory."""

    def test_the_model_directory_itself(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"^option.model_id is not set, and .* has no config\.json and no GGUF file$"
        ):
            local_path("", "", tmp_path)
        (tmp_path / "config.json").touch()
        assert local_path("", "", tmp_path) == tmp_path

    def test_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "m" / "weights").mkdir(parents=True)
        (tmp_path / "m" / "file.bin").touch()
        model, weights = tmp_path / "m", tmp_path / "m" / "weights"
        assert local_path("weights", "", model) == weights
        assert local_path("./weights", "", model) == weights
        assert local_path(str(weights), "", tmp_path) == weights
        assert local_path(weights.as_uri(), "", tmp_path) == weights
        monkeypatch.setenv("HOME", str(model))
        assert local_path("~/weights", "", tmp_path) == weights
        with pytest.raises(ConfigError, match="is a file; expected a directory"):
            local_path("file.bin", "", model)

    @pytest.mark.parametrize(
        "model_id", ["/no/such", "./no", "../no", "a/b/c", "~/no-such", "~no-user-is-called-this/x"]
    )
    def test_a_path_that_is_not_there_is_not_asked_of_the_hub(self, tmp_path: Path, model_id: str) -> None:
        with pytest.raises(ConfigError, match=r"^option.model_id=.*: there is no directory /"):
            local_path(model_id, "", tmp_path)

    def test_a_path_that_the_system_refuses(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"^option.model_id=x+: /.*/x+: File name too long$"):
            path_here("x" * 300, tmp_path)


class TestScheme:
    @pytest.mark.parametrize(
        ("url", "scheme"),
        [
            ("/a/b", ""),
            ("a/b", ""),
            ("S3://b/p", "s3"),
            ("file:///a", "file"),
            ("file:/a", "file"),
            ("https://h/x?u=http://y", "https"),
            ("/a?u=http://y", ""),
            ("hf://a/b", "hf"),
        ],
    )
    def test_scheme_of(self, url: str, scheme: str) -> None:
        assert scheme_of(url) == scheme

    def test_unknown(self, cache: Path) -> None:
        with pytest.raises(
            ConfigError, match="scheme 'ftp' is not known; expected one of file, hf, http, https, ollama"
        ):
            fetch_model("ftp://x/y", cache)
        zoo = "djl://ai.djl.huggingface.pytorch/sentence-transformers/all-MiniLM-L6-v2"
        with pytest.raises(ConfigError, match=r"as in hf://sentence-transformers/all-MiniLM-L6-v2$"):
            fetch_model(zoo, cache)


class TestShownUrl:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://user:pass@host:1/m.zip?X-Amz-Signature=abc#x", "https://host:1/m.zip"),
            ("https://token@host/a@b", "https://host/a@b"),
            ("https://host:8080/a@b?c@d", "https://host:8080/a@b"),
            ("s3://key:sec/ret@bucket/p", "s3://bucket/p"),
            ("hf://owner/name", "hf://owner/name"),
            ("/models/a?application=nlp/x", "/models/a?application=nlp/x"),
            ("", ""),
        ],
    )
    def test_shown(self, url: str, shown: str) -> None:
        assert shown_url(url) == shown

    @pytest.mark.parametrize("url", ["https://u:hidden@host/m.zip", "s3://u:hid/den@bucket/p", "hf://hidden@host/x"])
    def test_a_login_is_refused_and_not_shown(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(ConfigError, match="expected no user and password in the URL") as caught:
            fetch_model(url)
        assert "hid" not in caught.value.message
        with pytest.raises(ConfigError, match="expected no user and password in the URL"):
            path_here(url, tmp_path)


class TestLocalSource:
    def test_directories(self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = tmp_path / "a b"
        directory.mkdir()
        monkeypatch.chdir(tmp_path)
        for url in ("a b", str(directory), directory.as_uri(), f"file:{directory}", "a b?application=nlp/x"):
            assert fetch_model(url, cache) == directory
        assert not cache.exists()

    def test_a_path_that_is_no_model_is_refused(self, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "model.onnx").touch()
        with pytest.raises(ConfigError, match=r"expected a directory, a GGUF file .*, or an archive"):
            fetch_model(str(tmp_path / "model.onnx"), cache)
        with pytest.raises(ConfigError, match=r"gone: no such file or directory$"):
            fetch_model(str(tmp_path / "gone"), cache)
        with pytest.raises(ConfigError, match=r"~no-user-is-called-this: no such file or directory$"):
            fetch_model("~no-user-is-called-this", cache)

    def test_zip(self, tmp_path: Path, cache: Path) -> None:
        archive = make_zip(tmp_path / "m.zip", **{"model.py": "1", "sub__x": "2"})
        path = fetch_model(str(archive), cache)
        assert path.is_relative_to(cache) and path.name == "m"
        assert ((path / "model.py").read_text(), (path / "sub" / "x").read_text()) == ("1", "2")
        assert fetch_model(archive.as_uri(), cache) == path

    def test_an_archive_that_changed_is_unpacked_again(self, tmp_path: Path, cache: Path) -> None:
        first = fetch_model(str(make_zip(tmp_path / "m.zip", a="1")), cache)
        second = fetch_model(str(make_zip(tmp_path / "m.zip", a="22")), cache)
        assert ((first / "a").read_text(), (second / "a").read_text()) == ("1", "22")

    @pytest.mark.parametrize(
        ("name", "mode"), [("m.tar.gz", "w:gz"), ("m.tgz", "w:gz"), ("m.tar", "w"), ("m.mar", "w")]
    )
    def test_tar(self, tmp_path: Path, cache: Path, name: str, mode: str) -> None:
        archive = make_tar(tmp_path / name, (tarfile.TarInfo("model.py"), b"1"), mode=mode)
        path = fetch_model(str(archive), cache)
        assert (path.name, (path / "model.py").read_text()) == ("m", "1")

    @pytest.mark.parametrize("entry", ["../evil", "/tmp/evil", "a/../../evil", "..\\evil"])
    def test_zip_that_leaves_its_directory(self, tmp_path: Path, cache: Path, entry: str) -> None:
        archive = make_zip(tmp_path / "m.zip", **{"ok": "", entry: ""})
        with pytest.raises(ConfigError, match="points outside of the model"):
            fetch_model(str(archive), cache)
        assert_nothing_left(tmp_path, cache)

    def test_tar_that_leaves_its_directory(self, tmp_path: Path, cache: Path) -> None:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        for member in (tarfile.TarInfo("../evil"), link):
            archive = make_tar(tmp_path / "m.tgz", (tarfile.TarInfo("ok"), b""), (member, b""))
            with pytest.raises(
                ConfigError, match=r"m\.tgz: .*(points outside of the model|a link that points outside)"
            ):
                fetch_model(str(archive), cache)
        assert_nothing_left(tmp_path, cache)

    def test_damaged_archives(self, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "m.zip").write_bytes(b"not a zip")
        with pytest.raises(ConfigError, match="neither a zip nor a tar archive"):
            fetch_model(str(tmp_path / "m.zip"), cache)
        whole = make_tar(tmp_path / "m.tgz", (tarfile.TarInfo("x"), os.urandom(100_000))).read_bytes()
        (tmp_path / "m.tgz").write_bytes(whole[:50_000])
        with pytest.raises(ConfigError, match=r"m\.tgz: can't be unpacked"):
            fetch_model(str(tmp_path / "m.tgz"), cache)
        assert_nothing_left(tmp_path, cache)

    @pytest.mark.parametrize(("name", "mode"), [("m.tgz", "w:gz"), ("m.tar.bz2", "w:bz2"), ("m.tar.xz", "w:xz")])
    def test_a_damaged_tar_archive_is_noticed_wherever_it_is(
        self, tmp_path: Path, cache: Path, name: str, mode: str
    ) -> None:
        """Also in the bytes of a file, which only a checksum tells from others."""
        content = (string.ascii_letters * 100).encode() + os.urandom(2000)
        whole = make_tar(tmp_path / name, (tarfile.TarInfo("x"), content), mode=mode).read_bytes()
        for position in range(40, len(whole), 37):  # behind the head, which has no checksum in gzip
            (tmp_path / name).write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
            with pytest.raises(ConfigError, match=r"(can't be unpacked|neither a zip nor a tar archive)"):
                fetch_model(str(tmp_path / name), cache)
        assert_nothing_left(tmp_path, cache)

    def test_many_at_once(self, tmp_path: Path, cache: Path) -> None:
        archive = make_zip(tmp_path / "m.zip", **{f"f{i}": "x" * 1000 for i in range(200)})
        with ThreadPoolExecutor(8) as pool:
            (path,) = set(pool.map(lambda _: fetch_model(str(archive), cache), range(8)))
        assert len(list(path.iterdir())) == 200
        assert [entry.name for entry in path.parent.iterdir()] == ["m"]

    def test_unwritable_cache(self, tmp_path: Path) -> None:
        (tmp_path / "cache").touch()
        archive = make_zip(tmp_path / "m.zip", a="1")
        with pytest.raises(ConfigError, match="DJL_CACHE_DIR says where downloads go"):
            fetch_model(str(archive), tmp_path / "cache")

    def test_default_cache_is_below_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        path = fetch_model(str(make_zip(tmp_path / "m.zip", a="1")))
        assert path.is_relative_to(tmp_path / ".cache" / "djl-serving")

    def test_a_user_without_a_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(uid: int) -> None:
            raise KeyError(uid)

        monkeypatch.delenv("HOME")
        monkeypatch.setattr(pwd, "getpwuid", unknown)
        with pytest.raises(ConfigError, match="no home directory; DJL_CACHE_DIR says where downloads go"):
            fetch_model(str(make_zip(tmp_path / "m.zip", a="1")))


class TestHttpSource:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[str]:
        """Serves tmp_path/www."""
        root = tmp_path / "www"
        root.mkdir()

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(root))

            def log_message(self, *args: Any) -> None:
                pass

            def end_headers(self) -> None:
                if (tags := root / "etag").is_file():
                    self.send_header("ETag", tags.read_text())
                super().end_headers()

            def send_header(self, keyword: str, value: str) -> None:
                longer = keyword == "Content-Length" and self.path.endswith("?longer")
                super().send_header(keyword, str(int(value) + 5) if longer else value)

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
            thread = threading.Thread(target=httpd.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{httpd.server_port}"
            httpd.shutdown()
            thread.join()

    def test_archive(self, server: str, tmp_path: Path, cache: Path) -> None:
        make_zip(tmp_path / "www" / "m.zip", **{"model.py": "1"})
        path = fetch_model(f"{server}/m.zip?signature=a/b", cache)
        assert (path.name, (path / "model.py").read_text()) == ("m", "1")
        assert fetch_model(f"{server}/m.zip", cache) == path
        make_zip(tmp_path / "www" / "m.zip", **{"model.py": "2"})
        assert (fetch_model(f"{server}/m.zip", cache) / "model.py").read_text() == "2"

    def test_an_unchanged_archive_is_not_downloaded_again(self, server: str, tmp_path: Path, cache: Path) -> None:
        archive, tag = tmp_path / "www" / "m.zip", tmp_path / "www" / "etag"
        tag.write_text('"1"')
        make_zip(archive, a="1")
        path = fetch_model(f"{server}/m.zip", cache)
        archive.write_bytes(b"")  # nobody reads it
        assert fetch_model(f"{server}/m.zip", cache) == path
        tag.write_text('"2"')
        make_zip(archive, a="2")
        assert (fetch_model(f"{server}/m.zip", cache) / "a").read_text() == "2"
        tag.write_text('W/"2"')  # a weak one is no proof
        make_zip(archive, a="3")
        assert (fetch_model(f"{server}/m.zip", cache) / "a").read_text() == "3"

    def test_a_download_for_which_the_disk_has_no_room(
        self, server: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_zip(tmp_path / "www" / "m.zip", a="1")
        monkeypatch.setattr(http_archives, "room_for_bytes", lambda _: 10)
        for tag in ("", '"1"'):
            (tmp_path / "www" / "etag").write_text(tag)
            with pytest.raises(ConfigError, match=r"m\.zip: \d+ bytes; there is room for 10$"):
                fetch_model(f"{server}/m.zip", cache)
        assert_nothing_left(tmp_path, cache)

    def test_a_download_goes_where_the_models_are(
        self, server: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no" / "room"))
        make_zip(tmp_path / "www" / "m.zip", **{"model.py": "1"})
        path = fetch_model(f"{server}/m.zip", cache)
        assert list(cache.iterdir()) == [path.parent]

    def test_errors(self, server: str, tmp_path: Path, cache: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.zip: the server answered 404") as caught:
            fetch_model(f"{server}/none.zip?signature=secret", cache)
        assert "secret" not in caught.value.message
        (tmp_path / "www" / "page.html").write_text("<html>")
        with pytest.raises(ConfigError, match="neither a zip nor a tar archive"):
            fetch_model(f"{server}/page.html", cache)
        with pytest.raises(ConfigError, match="can't be downloaded"):
            fetch_model("http://127.0.0.1:1/m.zip", cache)
        with pytest.raises(ConfigError, match=r"can't be downloaded \(InvalidURL\)") as caught:
            fetch_model(f"{server}/m.zip?a secret", cache)
        assert "secret" not in caught.value.message

    def test_a_download_that_ends_too_early(self, server: str, tmp_path: Path, cache: Path) -> None:
        """A tar archive without its end looks whole."""
        archive = make_tar(
            tmp_path / "www" / "m.tar", (tarfile.TarInfo("a"), b"1"), (tarfile.TarInfo("b"), b"2"), mode="w"
        )
        archive.write_bytes(archive.read_bytes()[:1024])
        with pytest.raises(ConfigError, match=r"m\.tar: the connection ended 5 bytes too early"):
            fetch_model(f"{server}/m.tar?longer", cache)
        assert list(cache.iterdir()) == []


class TestHubSource:
    """The hub client's own part is replaced, where it would need the network, by what it is documented to raise."""

    @pytest.mark.parametrize("model_id", ["not a hub id", "a..b", "owner/na--me"])
    def test_a_text_that_is_no_hub_id_is_refused(self, tmp_path: Path, model_id: str) -> None:
        with pytest.raises(ConfigError, match=rf"^option.model_id={model_id}: neither a local directory nor a hub id"):
            local_path(model_id, "", tmp_path)

    def test_pickled_weights_are_downloaded_only_without_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[dict[str, Any]] = []

        def download(repo: str, **arguments: Any) -> str:
            calls.append({"repo": repo, **arguments})
            return str(tmp_path)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        (tmp_path / "config.json").touch()  # where there is none, the hub is asked for names of GGUF files
        assert local_path("owner/name", "v1", tmp_path) == tmp_path
        assert [(call["repo"], call["revision"]) for call in calls] == [("owner/name", "v1")] * 2
        assert "*.bin" not in calls[0]["allow_patterns"], "pickled weights only where there are no others"
        assert "*.bin" in calls[1]["allow_patterns"]
        (tmp_path / "model.safetensors").touch()
        calls.clear()
        assert fetch_model("hf://owner/name") == tmp_path
        assert [(call["repo"], call["revision"]) for call in calls] == [("owner/name", None)]

    def test_offline(self, tmp_path: Path) -> None:
        """The real client, in a process of its own: it reads its environment when it is imported."""
        program = "from pathlib import Path; from djl_python.sources import *; local_path('owner/name', '', Path('.'))"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        expected = "hub model owner/name is not in the local cache, and the hub can't be reached"
        assert result.stderr.splitlines()[-1] == f"djl_python.core.errors.ConfigError: {expected}"

    @pytest.mark.parametrize(
        ("raised", "message"),
        [
            (lambda: hub_error(errors.GatedRepoError, 403), "is gated: accept its terms on its page, and set HF_TOKEN"),
            (lambda: hub_error(errors.RepositoryNotFoundError, 404), "does not exist, or is private"),
            (lambda: hub_error(errors.RevisionNotFoundError, 404), "has no revision 'v1'"),
            (lambda: hub_error(errors.HfHubHTTPError, 500), "can't be downloaded: boom"),
            (lambda: errors.LocalEntryNotFoundError("x"), "at revision v1 is not in the local cache"),
            (lambda: errors.OfflineModeIsEnabled("x"), "the hub can't be reached"),
            (lambda: errors.HTTPError("slow\nand more"), "can't be downloaded: slow$"),  # type: ignore[attr-defined]
            (lambda: OSError(28, "No space left on device"), "can't be downloaded: .*No space left"),
        ],
    )
    def test_errors(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Any, message: str) -> None:
        def download(*_: Any, **__: Any) -> str:
            raise raised()

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        with pytest.raises(ConfigError, match=message) as caught:
            local_path("owner/name", "v1", tmp_path)
        assert caught.value.message.startswith("hub model owner/name")
        assert "\n" not in caught.value.message


class TestS3Source:
    """Against a stand-in for boto3's client; the listing has S3's shape."""

    OBJECTS = {  # noqa: RUF012
        "models/a/": b"",
        "models/a/config.json": b"{}",
        "models/a/sub/x": b"1",
        "models/ab/config.json": b"another model",
    }

    @pytest.fixture
    def bucket(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
        objects = dict(self.OBJECTS)

        class BotoCoreError(Exception):
            pass

        class ClientError(Exception):
            pass

        class Client:
            def get_paginator(self, operation: str) -> Client:
                assert operation == "list_objects_v2"
                return self

            def paginate(self, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
                if Bucket != "bucket":
                    raise ClientError("The specified bucket does not exist")
                for key in filter(lambda key: key.startswith(Prefix), sorted(objects)):
                    yield {"Contents": [{"Key": key, "ETag": str(hash(objects[key])), "Size": len(objects[key])}]}
                yield {}

            def download_file(self, bucket: str, key: str, path: str, *, Callback: Callable[[int], None]) -> None:
                Path(path).write_bytes(objects[key])
                Callback(len(objects[key]))

        boto3, botocore = types.ModuleType("boto3"), types.ModuleType("botocore")
        exceptions, download_errors = types.ModuleType("botocore.exceptions"), types.ModuleType("boto3.exceptions")
        vars(boto3)["client"] = lambda service: Client()
        vars(exceptions).update(BotoCoreError=BotoCoreError, ClientError=ClientError)
        vars(download_errors)["Boto3Error"] = ClientError
        for module in (boto3, botocore, exceptions, download_errors):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return objects

    def test_prefix(self, bucket: dict[str, bytes], cache: Path, tmp_path: Path) -> None:
        path = local_path("s3://bucket/models/a/", "", tmp_path, cache)
        files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        assert files == {"config.json": b"{}", "sub/x": b"1"}
        assert fetch_model("s3://bucket/models/a/", cache) == path
        bucket["models/a/sub/x"] = b"2"
        assert (fetch_model("s3://bucket/models/a/", cache) / "sub" / "x").read_bytes() == b"2"

    def test_objects_for_which_the_disk_has_no_room(
        self, bucket: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "room_for_bytes", lambda _: 2)
        with pytest.raises(ConfigError, match=r"models/a: 2 objects of 3 bytes; there is room for 100000 of 2$"):
            fetch_model("s3://bucket/models/a", cache)
        assert not [path for path in cache.rglob("*") if path.is_file()]

    def test_archive(self, bucket: dict[str, bytes], cache: Path, tmp_path: Path) -> None:
        bucket["models/m.zip"] = make_zip(tmp_path / "m.zip", **{"model.py": "1"}).read_bytes()
        assert (fetch_model("s3://bucket/models/m.zip", cache) / "model.py").read_text() == "1"

    def test_errors(self, bucket: dict[str, bytes], cache: Path) -> None:
        with pytest.raises(ConfigError, match=r"^s3://bucket/none: there is nothing$"):
            fetch_model("s3://bucket/none", cache)
        with pytest.raises(ConfigError, match=r"^s3://other/x: The specified bucket does not exist$"):
            fetch_model("s3://other/x", cache)
        bucket["models/a/../../evil"] = b""
        with pytest.raises(ConfigError, match="points outside of the model"):
            fetch_model("s3://bucket/models/a", cache)

    def test_without_boto3(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        with pytest.raises(ConfigError, match=r"needs boto3; install it with: pip install 'djl-serving\[s3\]'"):
            fetch_model("s3://bucket/x", cache)


class TestTemplateSource:
    def test_each_template_is_used_in_place(self, cache: Path) -> None:
        templates = sorted(path.parent for path in DEMO.parent.glob("*/README.md"))
        assert DEMO in templates
        assert [fetch_model(f"template://{path.name}", cache) for path in templates] == templates
        assert not cache.exists()

    def test_a_checkpoint_of_a_template_is_here(self, tmp_path: Path) -> None:
        assert path_here("template://demo", tmp_path) == local_path("template://demo", "", tmp_path) == DEMO

    @pytest.mark.parametrize("name", ["nothing", "", "../config", "__pycache__", "demo/training"])
    def test_an_unknown_template_is_refused(self, cache: Path, name: str) -> None:
        with pytest.raises(SourceError, match=r"there is no such template; there is adapters, .*demo, .*triton$"):
            fetch_model(f"template://{name}", cache)


def test_every_source_is_there(cache: Path) -> None:
    for path in SOURCES.values():
        source: ModelSource = load_object(path)(cache)
        assert callable(source.fetch)


def hub_error(kind: Any, status: int) -> Exception:
    request = httpx.Request("GET", "https://hub.example/api")
    error: Exception = kind("boom\nsecond line", response=httpx.Response(status, request=request))
    return error


def assert_nothing_left(tmp_path: Path, cache: Path) -> None:
    assert not list(tmp_path.rglob("evil"))
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert not list(cache.rglob(".partial-*"))

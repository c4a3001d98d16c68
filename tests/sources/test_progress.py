"""How far downloads are, as their sources tell it: the hub's own client, pip and http over real connections."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import SourceError
from djl_python.core.model_files.download_part import DownloadPart
from djl_python.gguf import described_by
from djl_python.sources import downloaded_path, fetch_model, pull
from djl_python.sources.cards import card_of
from djl_python.sources.progress import Counted, watched
from tests.gguf.models import random_model, write_model
from tests.server.pulling.archives import archives
from tests.sources.hub_server import REPO, HubServer, hub_server


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_model(random_model("llama"), "llama", path)
    return path.read_bytes()


@pytest.fixture
def hub(gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    with hub_server({"README.md": b"# Name", "m-Q4_K_M.gguf": gguf, "m-Q8_0.gguf": gguf + b"\0"}) as made:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is written at a time
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield made


def test_a_file_of_the_hub_is_told_by_its_own_digest_while_it_comes(
    hub: HubServer, gguf: bytes, tmp_path: Path
) -> None:
    told: list[DownloadPart] = []
    hub.may_end.clear()

    def progress(part: DownloadPart) -> None:
        told.append(part)
        if part.done_bytes:
            hub.may_end.set()

    path = pull(f"{REPO}:Q4_K_M", tmp_path / "cache", progress=progress)
    assert {(part.digest, part.total_bytes) for part in told} == {
        (f"sha256:{hashlib.sha256(gguf).hexdigest()}", len(gguf))
    }
    done = [part.done_bytes for part in told]
    assert done == sorted(done) and any(0 < size < len(gguf) for size in done) and done[-1] == len(gguf)
    file = described_by(path)
    assert file is not None and file.read_bytes() == gguf
    again: list[DownloadPart] = []
    assert pull(f"hf://{REPO}:q4_k_m", tmp_path / "cache", progress=again.append) == path
    assert [part.done_bytes for part in again] == [len(gguf)]  # it is here


def test_downloaded_files_are_found_without_the_hub(
    hub: HubServer, gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert downloaded_path(f"{REPO}:Q4_K_M", "", tmp_path) is None
    path = pull(f"{REPO}:Q4_K_M", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert downloaded_path(f"{REPO}:Q4_K_M", "", tmp_path) == path
    assert downloaded_path(f"{REPO}:Q8_0", "", tmp_path) is None
    card = card_of(ModelConfig(name="m", option=Options(model_id=f"{REPO}:Q4_K_M")))
    assert (card.format, card.size_bytes) == ("gguf", len(gguf))
    silent: list[DownloadPart] = []
    assert pull(f"{REPO}:Q4_K_M", tmp_path / "cache", progress=silent.append) == path and silent == []


def test_a_repository_that_is_not_there(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="hub model no/such does not exist"):
        pull("no/such:Q4_K_M", tmp_path / "cache", progress=lambda part: None)


def test_an_archive_is_counted_as_it_comes(tmp_path: Path) -> None:
    told: list[DownloadPart] = []
    with archives() as remote:
        fetch_model(remote.url, tmp_path / "cache", progress=told.append)
        size = len(remote.archive)
        assert told[-1] == DownloadPart(told[0].digest, size, size)
        assert told[0].digest.startswith("sha256:") and len(told[0].digest) == 71


def test_reports_are_no_more_than_four_a_second() -> None:
    told: list[DownloadPart] = []
    counted = Counted(told.append, "place", 1000)
    for _ in range(1000):
        counted.add(1)
    assert [part.done_bytes for part in told] == [1, 1000]


def test_watched_files_are_told_where_they_have_changed_and_at_the_end() -> None:
    parts, told = [DownloadPart("a", 2, 0), DownloadPart("b", 2, 2)], list[DownloadPart]()
    seen = threading.Event()

    def progress(part: DownloadPart) -> None:
        told.append(part)
        seen.set()

    with watched(lambda: list(parts), progress):
        assert seen.wait(10)
        parts[0] = DownloadPart("a", 2, 2)
    assert told == [DownloadPart("a", 2, 0), DownloadPart("b", 2, 2), DownloadPart("a", 2, 2)]
    told.clear()
    with pytest.raises(ZeroDivisionError), watched(lambda: list(parts), progress):
        raise ZeroDivisionError
    assert told == []

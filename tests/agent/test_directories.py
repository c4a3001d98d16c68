import asyncio
import fcntl
import os
import time
from pathlib import Path

import msgspec
import pytest

from djl_python.agent import directories
from djl_python.agent.directories import localized
from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.ipc.protocol import Status
from djl_python.ipc.remote_protocol import FilePart, FileRequest, Listing
from djl_python.server.models.remote.listings import listings_of, part


class FrontEnd:
    """A front end whose directories the agent's machine lacks: there they have the names of `elsewhere`."""

    def __init__(self, config: ModelConfig) -> None:
        self.listings = listings_of(config)
        self.asked: list[FileRequest] = []
        self.reports: list[Status] = []
        self._parts: asyncio.Queue[FilePart] = asyncio.Queue()

    def send(self, request: FileRequest) -> None:
        self.asked.append(request)
        self._parts.put_nowait(part(self.listings, request))

    async def part(self) -> FilePart:
        return await self._parts.get()

    async def brings(self, config: ModelConfig, elsewhere: dict[str, str]) -> ModelConfig:
        listed = [Listing(elsewhere[listing.path], listing.files) for listing in self.listings]
        return await localized(config, listed, self.send, self.part, self.reports.append)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    (path / "part" / "__pycache__").mkdir(parents=True)
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "model.pyc").touch()
    (path / "serving.properties").write_text("batch_size=2\n")
    (path / "part" / "weights.bin").write_bytes(bytes(range(256)) * 5)
    (path / "empty").touch()
    blob = tmp_path / "blob"
    blob.write_text("linked")
    (path / "config.json").symlink_to(blob)  # as in the hub's cache
    (path / "again").symlink_to(path)
    (path / "gone").symlink_to(tmp_path / "nothing")
    return path


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


async def test_files_travel_once(model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "PART_BYTES", 500)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter.json").write_text("{}")
    config = ModelConfig(
        name="m",
        path="/there/model",
        option=Options(model_id="/there/model/part"),
        properties={"model_id": "/there/model/part", "other": "1"},
        adapters={"a": "/there/adapter"},
        cache_dir="/there/cache",
    )
    here = msgspec.structs.replace(
        config, path=str(model), option=Options(model_id=str(model / "part")), adapters={"a": str(adapter)}
    )
    front_end = FrontEnd(here)
    elsewhere = {str(model): "/there/model", str(adapter): "/there/adapter"}
    moved = await front_end.brings(config, elsewhere)
    assert content(Path(moved.path)) == {
        "config.json": b"linked",
        "empty": b"",
        "part/weights.bin": bytes(range(256)) * 5,
        "serving.properties": b"batch_size=2\n",
    }
    assert Path(moved.path).is_relative_to(cache)
    assert moved.option.model_id == moved.properties["model_id"] == f"{moved.path}/part"
    assert content(Path(moved.adapters["a"])) == {"adapter.json": b"{}"}
    assert moved.cache_dir == str(cache)
    assert max(status.done for status in front_end.reports) < front_end.reports[0].total
    asked = len(front_end.asked)
    assert asked == 6  # 1280 bytes in three pieces, and three files with one
    assert await front_end.brings(config, elsewhere) == moved
    assert len(front_end.asked) == asked
    (model / "serving.properties").write_text("batch_size=33\n")
    changed = await FrontEnd(here).brings(config, elsewhere)
    assert Path(changed.path, "serving.properties").read_text() == "batch_size=33\n"


async def test_the_same_directory_here_does_not_travel(model: Path, cache: Path) -> None:
    config = ModelConfig(name="m", path=str(model))
    front_end = FrontEnd(config)
    moved = await front_end.brings(config, {str(model): str(model)})
    assert (moved.path, front_end.asked) == (str(model), [])
    os.utime(model / "empty", ns=(1, 1))  # one with the same name and size is not the same
    moved = await front_end.brings(config, {str(model): str(model)})
    assert moved.path != str(model) and content(Path(moved.path)).keys() >= {"part/weights.bin"}


async def test_a_directory_beside_the_models_travels_too_however_it_is_written(
    model: Path, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.bin").write_bytes(b"other")
    other = f"{model}/../other"
    front_end = FrontEnd(ModelConfig(name="m", path=str(model), option=Options(model_id=other)))
    there = ModelConfig(name="m", path="/there/model", option=Options(model_id="/there/model/../other"))
    moved = await front_end.brings(there, {str(model): "/there/model", other: "/there/model/../other"})
    assert content(Path(moved.option.model_id)) == {"weights.bin": b"other"}
    assert "serving.properties" in content(Path(moved.path))


async def test_a_file_that_is_replaced_while_it_travels_does_not_arrive_mixed(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "PART_BYTES", 500)
    front_end = FrontEnd(ModelConfig(name="m", path=str(model)))
    weights = model / "part" / "weights.bin"

    def send(request: FileRequest) -> None:
        front_end.send(request)
        if request.offset:  # after the second part of three
            new = weights.with_name("new")
            new.write_bytes(bytes(weights.stat().st_size))
            new.rename(weights)

    (listing,) = front_end.listings
    moved = [Listing("/there", listing.files)]
    with pytest.raises(ModelLoadError, match=r"/there/part/weights.bin: it has changed meanwhile"):
        await localized(ModelConfig(name="m", path="/there"), moved, send, front_end.part, lambda _: None)
    assert not [path for path in cache.rglob("*") if path.is_file()]


async def test_a_file_that_has_gone_or_shrunk_meanwhile_is_named(model: Path, cache: Path) -> None:
    config = ModelConfig(name="m", path=str(model))
    front_end = FrontEnd(config)
    (model / "part" / "weights.bin").write_bytes(b"short")
    there = ModelConfig(name="m", path="/there")
    with pytest.raises(ModelLoadError, match=r"/there/part/weights.bin: it has changed meanwhile"):
        await front_end.brings(there, {str(model): "/there"})
    (model / "part" / "weights.bin").unlink()
    with pytest.raises(ModelLoadError, match=r"/there/part/weights.bin: No such file or directory"):
        await front_end.brings(there, {str(model): "/there"})
    assert not [path for path in cache.rglob("*") if path.is_file()]


async def test_leftovers_of_a_killed_agent_go_with_the_next_transfer(model: Path, cache: Path) -> None:
    config = ModelConfig(name="m", path=str(model))
    left, held, young = (cache / "travelled" / f".partial-{name}" for name in ("left", "held", "young"))
    for staging in (left, held, young):
        (staging / "files").mkdir(parents=True)
        (staging / "lock").touch()
        (staging / "files" / "weights.bin").touch()
        if staging is not young:
            os.utime(staging / "lock", (time.time() - 100,) * 2)
    with (held / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the agent does whose files travel
        moved = await FrontEnd(config).brings(ModelConfig(name="m", path="/there"), {str(model): "/there"})
    assert sorted(path.name for path in (cache / "travelled").iterdir()) == sorted(
        [Path(moved.path).name, held.name, young.name]
    )


async def test_no_file_lands_outside(model: Path, cache: Path) -> None:
    config = ModelConfig(name="m", path="/there")
    listing = Listing("/there", [("../../outside", 0, 0)])
    with pytest.raises(ModelLoadError, match="would lie outside"):
        await localized(config, [listing], lambda _: None, asyncio.Queue[FilePart]().get, lambda _: None)


def test_nothing_but_what_is_listed_is_sent(model: Path) -> None:
    listings = listings_of(ModelConfig(name="m", path=str(model)))
    assert part(listings, FileRequest(0, 99, 0, 1)).error and part(listings, FileRequest(3, 0, 0, 1)).error


def test_a_single_file_is_listed_alone(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_text(name)
    config = ModelConfig(name="m", option=Options(model_id=str(tmp_path / "a.gguf")))
    (listing,) = listings_of(config)
    assert (listing.path, [name for name, *_ in listing.files]) == (str(tmp_path), ["a.gguf"])
    assert listings_of(ModelConfig(name="m", url="s3://bucket/m", path=str(tmp_path))) == []
    with pytest.raises(ModelLoadError, match="there is no such directory"):
        listings_of(ModelConfig(name="m", option=Options(model_id="/nowhere")))

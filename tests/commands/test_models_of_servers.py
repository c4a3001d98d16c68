"""`djl-serving list`, `ps`, `stop` and `pull`: what is downloaded, and what a running server has."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from djl_python.cli import main
from tests.server.harness import Site, model_config, running
from tests.server.in_process import InProcess


async def command(site: Site, *arguments: str) -> int:
    name, *rest = arguments
    return await asyncio.to_thread(main, [name, "--url", f"http://127.0.0.1:{site.port}", *rest])


@pytest.fixture
def nobody() -> str:
    """The URL of a server that there is not."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


async def test_ps_shows_loaded_models_and_stop_unloads_them(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = model_config("a", option={"idle_unload": 300.0})
    async with running(loaded, model_config("b"), placement=InProcess()) as site:
        assert await command(site, "ps") == 0
        head, a, b = capsys.readouterr().out.splitlines()
        assert head.split() == ["NAME", "STATUS", "REQUESTS", "MEMORY", "IDLE", "UNTIL"]
        assert a.split()[:3] == ["a", "Healthy", "0"] and a.endswith("Z") and b.endswith("for ever")
        assert await command(site, "stop", "a") == 0
        assert "a is unloaded" in capsys.readouterr().out and not site.models["a:"].ready
        assert await command(site, "ps", "--json") == 0
        (left,) = json.loads(capsys.readouterr().out)
        assert left["modelName"] == "b" and left["idleSeconds"] >= 0
        assert await command(site, "ps", "--all") == 0
        assert "Unloaded" in capsys.readouterr().out
        assert (await site.post("/predictions/a", do="echo")).status_code == 200


async def test_ps_shows_more_models_than_a_page_has(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"m{number:03}" for number in range(101)]
    async with running(*map(model_config, names), load_on_request=True) as site:
        assert await command(site, "ps", "--all", "--json") == 0
        assert [model["modelName"] for model in json.loads(capsys.readouterr().out)] == names


async def test_stop_says_what_the_server_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(model_config("a"), placement=InProcess()) as site:
        assert await command(site, "stop", "none") == 1
        assert "404: there is no model 'none'" in capsys.readouterr().err
        assert await command(site, "stop", "a", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"unloaded": ["a"]}


@pytest.mark.parametrize("arguments", [("ps",), ("stop", "a"), ("list",)])
def test_a_server_that_does_not_run_is_said_not_to(
    arguments: tuple[str, ...], nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--url", nobody]) == 1
    assert f"no server runs at {nobody} (--url names another address)" in capsys.readouterr().err


async def test_list_has_downloads_and_what_a_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "cache" / "0123456789abcdef" / "llama"
    archive.mkdir(parents=True)
    (archive / "model.safetensors").write_bytes(bytes(3 << 20))
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    async with running(model_config("a"), load_on_request=True) as site:
        assert await command(site, "list", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert {"name": "llama", "bytes": 3 << 20, "path": str(archive)} in told["downloaded"]
        assert [(model["modelName"], model["status"]) for model in told["registered"]] == [("a", "Unloaded")]
        assert await command(site, "list") == 0
        assert "3.0 MiB" in capsys.readouterr().out


def test_pull_downloads_into_the_cache_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["pull", "template://demo", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["model"] == "template://demo" and (Path(told["path"]) / "serving.properties").is_file()


def test_pull_says_what_it_can_not_download(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "a/b/c"]) == 1
    assert "a/b/c: expected owner/model of the hub, or a URL" in capsys.readouterr().err
    assert main(["pull", f"{nobody}/model.zip"]) == 1
    assert "can't be downloaded" in capsys.readouterr().err

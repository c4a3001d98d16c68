"""What a model that was loaded again must answer before it takes over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from djl_python.config import ModelSpec, ServerConfig
from djl_python.core.errors import ModelLoadError
from djl_python.server.models.registry import ModelRegistry
from djl_python.server.models.trial_request import try_request
from djl_python.sources import load_model_config
from tests.server.harness import fake_registry, model_config, running, served
from tests.server.in_process import InProcess

FILE = "trial.json"


def model(parent: Path, order: object = None, **settings: str) -> ModelSpec:
    (parent / "model.py").touch()
    lines = {"option.trial_request": FILE, **settings}
    (parent / "serving.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    (parent / FILE).write_text(json.dumps(order or {"do": "echo"}))
    return ModelSpec(name="a", url=str(parent))


def registry_of_directories() -> ModelRegistry:
    registry, _ = fake_registry(placement=InProcess(), read=lambda spec: load_model_config(spec, ServerConfig()))
    return registry


@pytest.mark.parametrize(
    "order", [{"do": "echo"}, {"do": "stream", "n": 3}, {"do": "flow", "n": 9, "size": 9, "ahead": 9}]
)
async def test_a_good_answer(tmp_path: Path, order: dict[str, object]) -> None:
    registry = registry_of_directories()
    before = await registry.register(model(tmp_path, {"do": "hang"}))  # nothing serves yet that could be kept
    model(tmp_path, order)
    assert await registry.reload("a") is registry.models.select("a") is not before
    await registry.close()


@pytest.mark.parametrize(
    ("order", "settings", "why"),
    [
        ({"do": "headers", "status": 424}, {}, "424 body"),
        ({"do": "break"}, {}, "its answer broke off"),
        ({"do": "hang"}, {"option.predict_timeout": "0.2"}, "within predict_timeout|0.2 s"),
        ({"do": "stream", "n": 1000, "gap_s": 0.01}, {"option.predict_timeout": "0.2"}, "no whole answer within"),
        ({}, {"option.trial_request": "none"}, "option.trial_request=none: .*No such file"),
    ],
)
async def test_without_one_the_present_model_stays(
    tmp_path: Path, order: dict[str, object], settings: dict[str, str], why: str
) -> None:
    registry = registry_of_directories()
    before = await registry.register(model(tmp_path))
    model(tmp_path, order, **settings)
    with pytest.raises(ModelLoadError, match=why):
        await registry.reload("a")
    assert registry.models.select("a") is before and before.ready
    assert list(registry.running) == [before]
    assert registry.describe("a")[0].reload_failure
    await registry.close()


async def test_requests_get_to_the_new_one_when_it_has_answered(tmp_path: Path) -> None:
    async with running(placement=InProcess(), directories=True) as site:
        await site.registry.register(model(tmp_path))
        model(tmp_path, {"do": "echo", "sleep_s": 0.2})
        reloading = site.registry.reload("a")
        while not reloading.done():
            assert (await site.post("/predictions/a", do="echo")).status_code == 200
        await reloading


async def test_a_model_that_goes_meanwhile(tmp_path: Path) -> None:
    registry = registry_of_directories()
    await registry.register(model(tmp_path))
    model(tmp_path, {"do": "hang"})
    reloading = registry.reload("a")
    async with asyncio.timeout(10):
        while len(registry.running) < 2 or not registry.running[1].pool.in_flight:
            await asyncio.sleep(0.01)
        await registry.unregister("a")
    with pytest.raises(ModelLoadError, match="was unregistered meanwhile"):
        await reloading
    assert not registry.running
    await registry.close()


async def test_a_handler_of_the_users_has_had_its_first_call() -> None:
    """And what else it takes, nobody knows: no request is made up for it."""
    await try_request(served(model_config()))  # without a worker that could answer

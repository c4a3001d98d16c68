import asyncio
from pathlib import Path

import pytest

from djl_python.core.errors import ModelLoadError, ModelNotFoundError, ModelNotNamedError
from djl_python.server.metrics import Metrics
from djl_python.server.models.registry import Models
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import FAKE_MODULE, model_config, running, until, wait_ready


def models(*names: str, default: str = "") -> Models:
    found, metrics = Models(default), Metrics()
    for name in names:
        name, _, version = name.partition(":")
        found.add(ServedModel(model_config(name, version), metrics.model(name, version)))
    return found


async def test_the_only_model_needs_no_name() -> None:
    assert models("a").select("").config.name == "a"
    assert models("a").select("a").config.name == "a"


async def test_of_several_versions_the_last_registered_answers() -> None:
    several = models("a:1", "a:2")
    assert several.select("").config.version == "2"
    assert several.select("a", "1").config.version == "1"
    assert len(several) == 2
    with pytest.raises(ModelNotFoundError, match="'a' has no version '3'; its versions: 1, 2"):
        several.select("a", "3")


async def test_of_several_models_one_must_be_named() -> None:
    with pytest.raises(ModelNotNamedError, match="Parameter model_name is required: loaded: a, b"):
        models("a", "b").select("")
    assert models("a", "b", default="b").select("").config.name == "b"


async def test_an_unknown_model_is_answered_with_what_is_there() -> None:
    with pytest.raises(ModelNotFoundError, match="there is no model 'c'; loaded: a, b"):
        models("a", "b").select("c")
    with pytest.raises(ModelNotFoundError, match="no model is loaded"):
        models().select("")


async def test_a_model_without_a_version_is_found_under_what_an_api_calls_it() -> None:
    mixed = models("a", "b:2")
    assert mixed.select("a", "1", unversioned="1").config.name == "a"
    for name, version, there in (("a", "2", "1"), ("b", "1", "2")):
        with pytest.raises(ModelNotFoundError, match=f"its versions: {there}$"):
            mixed.select(name, version, unversioned="1")


async def test_an_unloaded_model_is_gone_and_can_be_loaded_again() -> None:
    async with running(model_config("a", "1"), model_config("a", "2"), model_config("b")) as site:
        found = site.front_end.models
        gone = [found.select("a", "1"), found.select("a", "2")]
        await found.unload("a", drain_timeout_s=5)
        assert [model.config.name for model in found] == ["b"]
        assert found.unloaded == gone
        assert all(replica.pid is None for model in gone for replica in model.replicas)
        with pytest.raises(ModelNotFoundError, match="no model 'a' to unload; loaded: b"):
            await found.unload("a", drain_timeout_s=5)
        await found.load("a")
        assert found.unloaded == [] and found.select("a").ready and found.select("a").config.version == "2"
        await found.load("a")  # is loaded already
        with pytest.raises(ModelNotFoundError, match="no model 'c' to load; the server knows b, a"):
            await found.load("c")
        for model in found:
            site.models[f"{model.config.name}:{model.config.version}"] = model  # to be stopped at the end


async def test_requests_of_a_model_that_is_unloaded_finish() -> None:
    async with running(model_config()) as site:
        running_call = asyncio.create_task(site.post(do="echo", sleep_s=0.3))
        await until(lambda: site.model.pool.busy == 1)
        await site.front_end.models.unload("m", drain_timeout_s=5)
        assert (await running_call).status_code == 200


async def test_requests_that_take_too_long_are_told_why() -> None:
    async with running(model_config()) as site:
        hanging = asyncio.create_task(site.post(do="hang"))
        await until(lambda: site.model.pool.busy == 1)
        await site.front_end.models.unload("m", drain_timeout_s=0.05)
        assert (await hanging).status_code == 503
        assert "model 'm' is being unloaded" in (await hanging).text


async def test_a_model_that_does_not_load_again_stays_as_failed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    config = model_config(properties={"crash_after": str(marker)})
    found = Models()
    found.add(ServedModel(config, Metrics().model("m", ""), worker_module=FAKE_MODULE))
    found.select("m").start()
    await wait_ready(found.select("m"))
    await found.unload("m", drain_timeout_s=5)
    with pytest.raises(ModelLoadError, match="model 'm' did not load: the worker exited with status 3"):
        await found.load("m")
    assert found.select("m").status.failed
    marker.unlink()  # what kept it from loading is mended
    await found.load("m")
    assert found.select("m").ready
    await found.select("m").stop()


async def test_workers_of_a_model_that_is_loaded_while_its_last_requests_finish_are_counted() -> None:
    async with running(model_config()) as site:
        found = site.front_end.models
        hanging = asyncio.create_task(site.client.post("/invocations", json={"do": "stream", "n": 20, "gap_s": 0.03}))
        await until(lambda: site.model.pool.busy == 1)
        unloading = asyncio.create_task(found.unload("m", drain_timeout_s=5))
        await asyncio.sleep(0)
        await found.load("m")
        site.models["m:"] = found.select("m")  # to be stopped at the end
        await asyncio.gather(unloading, hanging)
        assert await site.metric('djl_workers{model="m",state="ready"') == 1

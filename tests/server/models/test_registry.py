import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from djl_python.config import ModelConfig, ModelSpec, Runtime
from djl_python.core.errors import (
    ConfigError,
    ModelConflictError,
    ModelLoadError,
    ModelNotFoundError,
    ParameterError,
    UnavailableError,
)
from djl_python.ipc.protocol import Status
from djl_python.server.models.description import WorkerDescription
from djl_python.server.models.health import Health
from djl_python.server.models.registry import ModelRegistry
from djl_python.server.models.replica import WorkerState
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import Files, Site, fake_registry, model_config, running, until
from tests.server.in_process import InProcess


def spec(name: str = "m", version: str = "") -> ModelSpec:
    return ModelSpec(name=name, version=version, url="")


@pytest.fixture
async def empty() -> AsyncIterator[tuple[ModelRegistry, Files]]:
    """A registry without models, and what it can read."""
    registry, files = fake_registry(model_config())
    yield registry, files
    await registry.close()


def pids(registry: ModelRegistry, name: str = "m") -> set[int]:
    return {worker.pid for model in registry.describe(name) for worker in model.workers if worker.pid is not None}


async def busy(site: Site) -> asyncio.Task[int]:
    """The status of a call that is with a worker, and takes a while."""

    async def status() -> int:
        return (await site.post(do="stream", n=20, gap_s=0.02)).status_code

    model = site.model
    before = model.pool.busy
    task = asyncio.create_task(status())
    await until(lambda: model.pool.in_flight > before)
    return task


# ------------------------------------------------------------------------------------ what models run with


async def test_a_model_is_prepared_before_its_workers_start_and_old_ones_stay_if_that_fails() -> None:
    placement, said, told = InProcess(), asyncio.Event(), []

    async def prepare(config: ModelConfig, progress: Callable[[Status], None]) -> ModelConfig:
        progress(Status("loading", "installing"))
        await said.wait()
        if config.properties.get("broken"):
            raise ModelLoadError("pip says:\nno such package")
        return msgspec.structs.replace(config, runtime=Runtime(executable="/its/python"))

    registry, files = fake_registry(
        model_config(),
        placement=placement,
        prepare=prepare,
        on_progress=lambda model, status: told.append((model.config.name, status.detail)),
    )
    registering = registry.register(spec(), model_config())
    await until(lambda: bool(told))
    assert told == [("m", "installing")] and not placement.started
    assert registry.describe("m")[0].health is Health.PENDING
    said.set()
    model = await registering
    assert [one.config.runtime.executable for one, _ in placement.started] == ["/its/python"]
    files.configs[spec()] = model_config(properties={"broken": "yes"})
    with pytest.raises(ModelLoadError, match="no such package"):
        await registry.reload("m")
    assert registry.models.select("m") is model and model.health is Health.HEALTHY
    await registry.unregister("m")
    with pytest.raises(ModelLoadError):
        await registry.register(spec())
    (failed,) = registry.describe("m")
    assert (failed.health, failed.failure, len(placement.started)) == (Health.FAILED, "pip says:\nno such package", 1)
    await registry.close()


async def test_an_unregistered_models_preparation_is_cancelled() -> None:
    cleaned_up = False

    async def prepare(config: ModelConfig, _progress: object) -> ModelConfig:
        nonlocal cleaned_up
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.to_thread(os.getpid)  # takes a while
            cleaned_up = True
        return config

    registry, _ = fake_registry(model_config(), placement=InProcess(), prepare=prepare)
    registering = registry.register(spec(), model_config())
    await asyncio.sleep(0)
    await registry.unregister("m")
    with pytest.raises(ModelLoadError, match="unregistered meanwhile"):
        await registering
    assert cleaned_up
    await registry.close()


async def test_a_description_says_what_is_being_done_and_how_far_that_is() -> None:
    said = asyncio.Event()

    async def prepare(config: ModelConfig, progress: Callable[[Status], None]) -> ModelConfig:
        progress(Status("loading", "installing"))
        await said.wait()
        return config

    slow = model_config(properties={"load": "later"})
    registry, files = fake_registry(slow, placement=InProcess(), prepare=prepare)
    registering = registry.register(spec(), slow)
    await until(lambda: registry.describe("m")[0].step == Status("loading", "installing"))
    said.set()
    await until(lambda: bool(registry.describe("m")[0].workers))
    await until(lambda: _progress(registry.describe("m")[0].workers) == [("reading weights", 1, 2)])
    assert (registry.describe("m")[0].doing, registry.describe("m")[0].step) == ("loading", None)
    await registering
    (idle,) = registry.describe("m")
    assert (idle.doing, _progress(idle.workers), idle.successor) == ("", [None], ())
    reloading = registry.reload("m")
    await until(lambda: _progress(registry.describe("m")[0].successor) == [("reading weights", 1, 2)])
    (beside,) = registry.describe("m")
    assert (beside.doing, _progress(beside.workers)) == ("reloading", [None])
    await reloading
    files.configs[spec()] = "option.dtype=fp99: expected auto"
    with pytest.raises(ConfigError):
        await registry.reload("m")
    (idle,) = registry.describe("m")
    assert (idle.doing, idle.step, idle.successor) == ("", None, ())
    await registry.close()


def _progress(workers: Sequence[WorkerDescription]) -> list[tuple[str, int, int] | None]:
    told = [one.progress for one in workers]
    return [None if one is None else (one.detail, one.done, one.total) for one in told]


# ------------------------------------------------------------------------------------ register


async def test_a_model_is_registered_at_once_and_answers_when_the_task_is_done(
    empty: tuple[ModelRegistry, Files],
) -> None:
    registry, _ = empty
    task = registry.register(spec())
    assert [model.health for model in registry.describe("m")] == [Health.PENDING]
    model = await task
    assert model is registry.models.select("m") and model.health is Health.HEALTHY


async def test_a_name_and_version_are_taken_once(empty: tuple[ModelRegistry, Files]) -> None:
    registry, files = empty
    files.configs[spec("m", "2")] = model_config("m", "2")
    both = registry.register(spec()), registry.register(spec("m", "2"))
    for version, taken in (("", "model 'm' is"), ("2", "model 'm' version 2 is")):
        with pytest.raises(ModelConflictError, match=f"{taken} registered already"):
            registry.register(spec("m", version))
    await asyncio.gather(*both)
    assert len(registry.models) == 2


async def test_requests_are_answered_while_a_models_configuration_is_read() -> None:
    async with running() as site:
        site.files.configs[spec("slow")] = model_config("slow")
        site.files.may_be_read.clear()
        registering = site.registry.register(spec("slow"))
        assert (await site.post("/predictions/m", do="echo")).status_code == 200
        refused = await site.post("/predictions/slow", do="echo")
        assert refused.status_code == 503 and "model 'slow' is loading" in refused.text
        assert not registering.done()
        site.files.may_be_read.set()
        await registering
        assert (await site.post("/predictions/slow", do="echo")).status_code == 200


@pytest.mark.parametrize("known", [True, False])
async def test_a_model_that_can_not_be_read_is_a_failed_one_until_it_is_reloaded(
    empty: tuple[ModelRegistry, Files], known: bool
) -> None:
    registry, files = empty
    files.configs[spec()] = "option.dtype=fp99: expected auto"
    with pytest.raises(ConfigError, match="fp99"):
        await registry.register(spec(), ConfigError("option.dtype=fp99: expected auto") if known else None)
    (told,) = registry.describe("m")
    assert (told.health, told.failure, told.workers) == (Health.FAILED, "option.dtype=fp99: expected auto", [])
    files.configs[spec()] = "option.dtype=fp98: expected auto"
    with pytest.raises(ConfigError, match="fp98"):
        await registry.reload("m")
    assert registry.describe("m")[0].failure == "option.dtype=fp98: expected auto"
    files.configs[spec()] = model_config()
    assert (await registry.reload("m")).health is Health.HEALTHY


async def test_a_model_that_does_not_load_is_a_failed_one(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    with pytest.raises(ModelLoadError, match="model 'm' did not load: ZeroDivisionError"):
        await registry.register(spec(), model_config(properties={"load": "fail"}))
    (told,) = registry.describe("m")
    assert told.health is Health.FAILED and told.failure.startswith("model.py:3: in handle")
    assert [worker.state for worker in told.workers] == [WorkerState.FAILED]


async def test_an_unexpected_error_while_reading_fails_the_model_and_is_logged(
    empty: tuple[ModelRegistry, Files], caplog: pytest.LogCaptureFixture
) -> None:
    registry, _ = empty
    task = registry.register(spec("unheard-of"))
    await asyncio.wait({task})
    assert registry.describe("unheard-of")[0].failure.startswith("KeyError")
    assert "an operation on a model failed" in caplog.text
    with pytest.raises(KeyError):
        await task


# ------------------------------------------------------------------------------------ unregister


async def test_a_model_that_is_unregistered_answers_what_it_has_and_is_gone() -> None:
    async with running() as site:
        status, workers = await busy(site), pids(site.registry)
        gone = site.registry.unregister("m")
        assert (await site.post(do="echo")).status_code == 404
        with pytest.raises(ModelNotFoundError, match="there is no model 'm'; no model is loaded"):
            site.registry.unregister("m")
        await gone
        assert await status == 200
        assert not any(map(psutil.pid_exists, workers)) and site.registry.running == []
        assert await site.metric('djl_workers{model="m"') == 0


async def test_requests_that_take_too_long_are_told_why() -> None:
    async with running(drain_timeout_s=0.05) as site:
        hanging = asyncio.create_task(site.post(do="hang"))
        await until(lambda: site.model.pool.busy == 1)
        await site.registry.unregister("m")
        answer = await hanging
        assert answer.status_code == 503 and "model 'm' is being unloaded" in answer.text


async def test_of_several_versions_one_or_all_are_unregistered(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    for version in ("", "1", "2"):
        await registry.register(spec("m", version), model_config("m", version))
    await registry.unregister("m", "")
    assert [told.spec.version for told in registry.describe("m")] == ["1", "2"]
    with pytest.raises(ModelNotFoundError, match="its versions: 1, 2"):
        registry.unregister("m", "3")
    await registry.unregister("m")
    assert len(registry.models) == 0 and registry.running == []


@pytest.mark.parametrize("reading", [True, False])
async def test_to_unregister_a_model_ends_its_loading(
    empty: tuple[ModelRegistry, Files], tmp_path: Path, reading: bool
) -> None:
    registry, files = empty
    files.configs[spec()] = model_config(properties={"load": "hang", "pids": str(tmp_path / "pids")})
    if reading:
        files.may_be_read.clear()
    loading = registry.register(spec())
    if not reading:
        await until((tmp_path / "pids").exists)
    async with asyncio.timeout(5):
        await registry.unregister("m")
    with pytest.raises(ModelLoadError, match="model 'm' was unregistered meanwhile"):
        await loading
    files.may_be_read.set()
    assert registry.running == []


async def test_a_model_can_be_registered_again_while_the_one_of_its_name_finishes() -> None:
    async with running() as site:
        status, before = await busy(site), pids(site.registry)
        gone = site.registry.unregister("m")
        again = site.registry.register(spec())
        assert (await site.post(do="echo")).status_code == 503
        await asyncio.sleep(0.05)
        assert pids(site.registry) == set() and not status.done()  # it waits for the end of the one before
        await asyncio.gather(gone, again)
        assert await status == 200
        assert (await site.post(do="echo")).json()["pid"] in pids(site.registry) - before


# ------------------------------------------------------------------------------------ reload


async def test_a_reloaded_model_takes_over_when_it_is_ready_and_nothing_is_lost() -> None:
    async with running() as site:
        status, (before,) = await busy(site), pids(site.registry)
        site.files.configs[spec()] = model_config(properties={"load": "later"})
        reloading = site.registry.reload("m")
        answered = []
        while not reloading.done():
            answered.append((await site.post(do="echo")).json()["pid"])
        model, (after,) = await reloading, pids(site.registry)
        assert answered == sorted(answered, key=[before, after].index)
        assert {before} < {*answered, (await site.post(do="echo")).json()["pid"]} == {before, after}
        assert await status == 200
        assert model.config.properties == {"load": "later"} and not psutil.pid_exists(before)
        assert await site.metric('djl_workers{model="m",state="ready"') == 1


async def test_if_the_new_one_fails_the_old_one_stays() -> None:
    async with running(model_config(properties={"runner": "native"})) as site:
        before = pids(site.registry)
        for wrong, error in (
            (model_config(properties={"load": "fail"}), ModelLoadError),
            ("option.dtype=fp99: expected auto", ConfigError),
        ):
            site.files.configs[spec()] = wrong
            with pytest.raises(error, match=r"ZeroDivisionError|fp99"):
                await site.registry.reload("m")
            assert pids(site.registry) == before and site.registry.running == [site.model]
            assert (await site.post(do="echo")).status_code == 200
        assert await site.metric('djl_workers{model="m",state="ready"') == 1
        assert await site.metric('djl_workers{model="m",state="failed"') == 0
        assert await site.metric('djl_engine_info{device="",dtype="",model="m"') == 1


async def test_a_model_is_reloaded_from_elsewhere(empty: tuple[ModelRegistry, Files]) -> None:
    registry, files = empty
    await registry.register(spec())
    moved = ModelSpec(name="m", url="/elsewhere")
    files.configs[moved] = model_config()
    await registry.reload("m", spec=moved)
    assert registry.describe("m")[0].spec == moved


async def test_to_unregister_a_model_ends_its_reload() -> None:
    async with running() as site:
        status = await busy(site)
        site.files.configs[spec()] = model_config(properties={"load": "hang"})
        reloading = site.registry.reload("m")
        await until(lambda: len(site.registry.running) == 2)
        await site.registry.unregister("m")
        with pytest.raises(ModelLoadError, match="unregistered meanwhile"):
            await reloading
        assert await status == 200 and site.registry.running == []


# ------------------------------------------------------------------------------------ scale


async def test_workers_come_and_go_and_finish_their_calls() -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        (first,) = pids(site.registry)
        await site.registry.scale("m", min_workers=3)
        assert len(pids(site.registry)) == 3 and first in pids(site.registry)
        assert await site.metric('djl_workers{model="m",state="ready"') == 3
        streams = [await busy(site) for _ in range(3)]
        waiting = [asyncio.create_task(site.post(do="echo")) for _ in range(5)]
        await site.registry.scale("m", min_workers=1)
        assert await asyncio.gather(*streams) == [200] * 3
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
        assert pids(site.registry) == {first}
        assert await site.metric('djl_workers{model="m",state="ready"') == 1


async def test_between_the_two_numbers_nothing_changes(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    await (await registry.register(spec(), model_config(min_workers=2))).loaded()
    before = pids(registry)
    for least, most, number in ((1, 4, 2), (3, 4, 3), (1, 2, 2)):
        await registry.scale("m", min_workers=least, max_workers=most)
        assert len(pids(registry)) == number
    assert before == pids(registry)
    for wrong, named in (((0, None), "min_workers: expected at least 1, got 0"), ((2, 1), "max_workers")):
        with pytest.raises(ParameterError, match=named):
            registry.scale("m", min_workers=wrong[0], max_workers=wrong[1])


async def test_the_number_of_workers_outlasts_a_reload(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    await registry.register(spec())
    await registry.scale("m", min_workers=2)
    await registry.reload("m")
    assert len(pids(registry)) == 2


async def test_a_new_worker_that_does_not_load_leaves_the_number_as_it_was(tmp_path: Path) -> None:
    config = model_config(properties={"crash_after": str(tmp_path / "marker")})
    async with running(config) as site:
        before = pids(site.registry)
        with pytest.raises(ModelLoadError, match="exited with status 3"):
            await site.registry.scale("m", min_workers=2)
        assert pids(site.registry) == before and site.model.health is Health.HEALTHY
        assert site.model.config.serving.min_workers == 1


async def test_scaling_replaces_workers_that_were_given_up(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    config = model_config(properties={"crash_after": str(marker)}, min_workers=2)
    async with running(config, wait=False) as site:
        await until(lambda: {one.state for one in site.model.workers.always} == {WorkerState.READY, WorkerState.FAILED})
        assert site.model.failure
        marker.unlink()
        await site.registry.scale("m", min_workers=2)
        assert site.model.health is Health.HEALTHY and (await site.post(do="echo")).status_code == 200


async def test_every_device_has_its_workers(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    await registry.register(spec(), model_config(load_on_devices="cpu;gpu1"))
    await registry.scale("m", min_workers=2)
    devices = [worker.device for worker in registry.describe("m")[0].workers]
    assert sorted(devices) == ["cpu", "cpu", "cuda:1", "cuda:1"]
    await registry.scale("m", min_workers=1)
    assert sorted(worker.device for worker in registry.describe("m")[0].workers) == ["cpu", "cuda:1"]


async def test_to_unregister_a_model_ends_its_scaling(tmp_path: Path) -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        status = await busy(site)
        scaling = site.registry.scale("m", min_workers=3)
        await until(lambda: len(site.model.workers.always) == 3)
        await site.registry.unregister("m")
        with pytest.raises(ModelLoadError, match="unregistered meanwhile"):
            await scaling
        assert await status == 200 and site.registry.running == []


# ------------------------------------------------------------------------------------ in turn, and side by side


async def test_operations_on_one_model_take_place_in_turn(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    ended: list[asyncio.Task[ServedModel]] = []
    tasks = [
        registry.register(spec()),
        registry.scale("m", min_workers=2),
        registry.reload("m"),
        registry.scale("m", min_workers=1),
    ]
    for task in tasks:
        task.add_done_callback(ended.append)
    await asyncio.gather(*tasks)
    assert ended == tasks
    assert len(pids(registry)) == 1 and len(registry.running) == 1


async def test_operations_on_different_models_take_place_side_by_side(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    hanging = registry.register(spec("hanging"), model_config("hanging", properties={"load": "hang"}))
    await registry.register(spec())
    await registry.scale("m", min_workers=2)
    await registry.unregister("m")
    assert not hanging.done()
    await registry.unregister("hanging")
    await asyncio.wait({hanging})


async def test_operations_on_unknown_models_are_refused(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    await registry.register(spec("m", "1"), model_config("m", "1"))
    asked: list[Callable[[], object]] = [
        lambda: registry.describe("x"),
        lambda: registry.describe("m", "2"),
        lambda: registry.reload("x"),
        lambda: registry.scale("m", "2", min_workers=1),
        lambda: registry.unregister("m", ""),
    ]
    for ask in asked:
        with pytest.raises(ModelNotFoundError):
            ask()


async def test_a_registry_that_is_closed_ends_everything(empty: tuple[ModelRegistry, Files]) -> None:
    registry, files = empty
    await registry.register(spec())
    files.configs[spec()] = model_config(properties={"load": "hang"})
    begun = [
        registry.reload("m"),
        registry.register(spec("hanging"), model_config("hanging", properties={"load": "hang"})),
    ]
    await until(lambda: len(registry.running) == 3)
    workers = pids(registry) | pids(registry, "hanging")
    await registry.close()
    assert all(isinstance(task.exception(), ModelLoadError) for task in begun)
    assert not any(map(psutil.pid_exists, workers))
    with pytest.raises(UnavailableError, match="shutting down"):
        registry.register(spec("other"))


# ------------------------------------------------------------------------------------ unload, load


async def test_an_unloaded_model_is_gone_and_can_be_loaded_again() -> None:
    async with running(model_config("a", "1"), model_config("a", "2"), model_config("b")) as site:
        registry, models = site.registry, site.registry.models
        gone = [models.select("a", "1"), models.select("a", "2")]
        await registry.unload("a")
        assert [model.config.name for model in models] == ["b"]
        assert registry.unloaded == gone and registry.running == list(models)
        with pytest.raises(ModelNotFoundError, match="no model 'a' to unload; loaded: b"):
            await registry.unload("a")
        await registry.load("a")
        assert registry.unloaded == [] and models.select("a").ready and models.select("a").config.version == "2"
        await registry.load("a")  # is loaded already
        with pytest.raises(ModelNotFoundError, match="no model 'c' to load; the server knows b, a"):
            await registry.load("c")


async def test_a_model_that_is_loaded_twice_at_a_time_is_loaded_once(empty: tuple[ModelRegistry, Files]) -> None:
    registry, files = empty
    await registry.register(spec())
    await registry.unload("m")
    files.may_be_read.clear()
    first, second = asyncio.create_task(registry.load("m")), asyncio.create_task(registry.load("m"))
    await asyncio.sleep(0.05)
    files.may_be_read.set()
    await asyncio.gather(first, second)
    assert len(registry.running) == 1 and registry.models.select("m").ready


async def test_a_model_that_is_unloaded_while_it_is_loaded_does_not_load(empty: tuple[ModelRegistry, Files]) -> None:
    registry, files = empty
    await registry.register(spec())
    await registry.unload("m")
    files.configs[spec()] = model_config(properties={"load": "hang"})
    loading = asyncio.create_task(registry.load("m"))
    await until(lambda: len(registry.running) == 1)
    await registry.unload("m")
    with pytest.raises(ModelLoadError, match="unregistered meanwhile"):
        await loading
    assert registry.running == [] and len(registry.unloaded) == 1


async def test_a_model_that_does_not_load_again_stays_as_failed(
    empty: tuple[ModelRegistry, Files], tmp_path: Path
) -> None:
    registry, files = empty
    marker = tmp_path / "marker"
    files.configs[spec()] = model_config(properties={"crash_after": str(marker)})
    await registry.register(spec())
    await registry.unload("m")
    with pytest.raises(ModelLoadError, match="model 'm' did not load: the worker exited with status 3"):
        await registry.load("m")
    assert registry.models.select("m").status.failed
    files.configs[spec()] = "option.dtype=fp99: expected auto"
    with pytest.raises(ModelLoadError, match="fp99"):
        await registry.load("m")
    files.configs[spec()] = model_config()  # what kept it from loading is mended
    await registry.load("m")
    assert registry.models.select("m").ready


async def test_a_model_that_is_registered_again_is_unloaded_no_more(empty: tuple[ModelRegistry, Files]) -> None:
    registry, _ = empty
    for version in ("1", "2"):
        await registry.register(spec("m", version), model_config("m", version))
    await registry.unload("m")
    await registry.register(spec("m", "1"), model_config("m", "1"))
    assert [model.config.version for model in registry.unloaded] == ["2"]
    await registry.unload("m")
    assert sorted(model.config.version for model in registry.unloaded) == ["1", "2"]

"""DJL's management API over HTTP, with real model directories and fake workers in this process."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import Site, directory, running, until
from tests.server.in_process import InProcess


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A server with the model m, for which `tmp_path` is the model store."""
    async with running(placement=InProcess(), directories=True, model_store=str(tmp_path)) as made:
        yield made


async def register(site: Site, **parameters: object) -> httpx.Response:
    return await site.client.post("/models", params={name: str(value) for name, value in parameters.items()})


async def described(site: Site, name: str = "a") -> dict[str, Any]:
    ((workflow,), status) = await of(site, "GET", f"/models/{name}")
    assert status == 200 and workflow["workflowName"] == name
    (model,) = workflow["models"]
    return dict(model)


async def of(site: Site, method: str, path: str, **options: Any) -> tuple[Any, int]:
    answer = await site.client.request(method, path, **options)
    assert answer.headers["content-type"] == "application/json"
    return answer.json(), answer.status_code


async def refused(answer: httpx.Response, status: int, kind: str = "BadRequestException") -> str:
    told = answer.json()
    assert (answer.status_code, told["code"], told["type"]) == (status, status, kind), told
    return str(told["message"])


# ------------------------------------------------------------------------------------ register


async def test_a_model_is_registered_and_answers(site: Site, tmp_path: Path) -> None:
    answer = await register(site, url=directory(tmp_path))
    assert (answer.status_code, answer.json()) == (200, {"status": 'Model "a" registered.'})
    assert (await site.post("/predictions/a", do="echo")).status_code == 200


async def test_a_description_has_the_documented_fields(site: Site, tmp_path: Path) -> None:
    path = directory(tmp_path, batch_size=2, job_queue_size=5, load_on_devices="cpu;gpu1")
    await register(site, url=path, max_batch_delay=7, min_worker=2, model_version="v1")
    answer = await site.client.get("/models/a")
    assert answer.text.startswith('[\n  {\n    "workflowName": "a",\n')
    (workflow,) = answer.json()
    assert workflow["version"] == "v1"
    (model,) = workflow["models"]
    groups = model.pop("workerGroups")
    assert model.pop("idleSeconds") >= 0
    assert model == {
        "modelName": "a",
        "modelUrl": str(path),
        "batchSize": 2,
        "maxBatchDelayMillis": 7,
        "maxIdleSeconds": 60,
        "queueSize": 5,
        "requestInQueue": 0,
        "requestInFlight": 0,
        "status": "Healthy",
        "loadedAtStartup": False,
        "registeredWith": {"max_batch_delay": "7", "min_worker": "2"},
        "warnings": [
            "serving.properties:3: load_on_devices=cpu;gpu1 has no effect: there is no GPU; one worker on the CPU for "
            "each device"
        ],
    }
    assert [group["device"] for group in groups] == [
        {"deviceType": "cpu", "deviceId": -1},
        {"deviceType": "auto", "deviceId": -1},
    ]
    assert [(group["minWorkers"], group["maxWorkers"], len(group["workers"])) for group in groups] == [(2, 2, 2)] * 2
    worker = groups[1]["workers"][0]
    assert (worker["id"], worker["status"]) == (2, "READY")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", worker["startTime"])
    assert (await described(site, "m"))["loadedAtStartup"] is True


async def test_a_registrations_settings_override_the_directorys_and_stay(site: Site, tmp_path: Path) -> None:
    path = directory(tmp_path, batch_size=2, job_queue_size=5)
    await register(site, url=path, batch_size=3)
    directory(tmp_path, batch_size=9, job_queue_size=6)
    assert (await site.client.post("/v2/repository/models/a/load")).status_code == 200
    model = await described(site)
    assert (model["batchSize"], model["queueSize"]) == (3, 6)
    await register(site, url=path, reload=True, job_queue_size=7)
    model = await described(site)
    assert (model["batchSize"], model["queueSize"]) == (3, 7)
    assert model["registeredWith"] == {"batch_size": "3", "job_queue_size": "7"}
    (config,) = [one.config for one in site.registry.models if one.config.name == "a"]
    assert config.provenance["batch_size"] == "registration"


async def test_the_number_formats_of_a_model_can_be_given(site: Site, tmp_path: Path) -> None:
    path = directory(tmp_path, **{"option.dtype": "fp32"})
    assert (await register(site, url=path, dtype="bf16", quantize="int8")).status_code == 200
    (config,) = [one.config for one in site.registry.models if one.config.name == "a"]
    assert config.option.dtype == "bf16"
    assert config.provenance["option.dtype"] == config.provenance["option.quantize"] == "registration"
    assert (await described(site))["registeredWith"] == {"dtype": "bf16", "quantize": "int8"}


@pytest.mark.parametrize(
    "sent",
    [
        {"data": {"url": "a", "batch_size": "4"}},
        {"json": {"url": "a", "batch_size": 4, "synchronous": True}},
        {"content": b'{"url": "a"}', "params": {"batch_size": "4"}, "headers": {"content-type": "text/x"}},
        {"json": {"url": "b", "batch_size": 1}, "params": {"url": "a", "batch_size": "4"}},
    ],
)
async def test_parameters_come_in_the_query_or_in_a_body(site: Site, tmp_path: Path, sent: dict[str, Any]) -> None:
    directory(tmp_path)
    assert (await of(site, "POST", "/models", **sent))[1] == 200
    assert (await described(site))["batchSize"] == 4


async def test_a_relative_path_is_looked_for_as_at_startup(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    in_store, here = directory(tmp_path), directory(tmp_path / "here", "b")
    for name, path in (("a", in_store), ("b", here)):
        assert (await register(site, url=name)).status_code == 200
        config = site.models[f"{name}:"].config
        assert config.path == str(path)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "url: required, expected a non-empty string"),
        ({"url": ""}, "url: required, expected a non-empty string"),
        ({"url": "a", "min_worker": "two"}, 'min_worker: expected an integer >= 1, got "two"'),
        ({"url": "a", "batch_size": "0"}, 'batch_size: expected an integer >= 1, got "0"'),
        ({"url": "a", "synchronous": "maybe"}, 'synchronous: expected true or false, got "maybe"'),
        ({"url": "a", "device": "tpu"}, 'device: expected * or a list such as gpu0;gpu1, got "tpu"'),
        ({"url": "a", "min_worker": "3", "max_worker": "2"}, "max_worker: expected at least min_worker (3), got 2"),
        ({"url": "a", "model_name": "x y"}, "model 'a': 'x y' can't be a model's name"),
        ({"url": "a", "model_name": ".."}, "model 'a': '..' can't be a model's name"),
        ({"url": "a", "model_version": "1/2"}, "'1/2' can't be a model's version"),
        ({"url": "a", "initial_workers": "2"}, "initial_workers: there is no such parameter"),
        ({"url": "a", "batchsize": "2"}, "batchsize: there is no such parameter; did you mean batch_size?"),
        ({"url": "ftp://x/y"}, "scheme 'ftp' is not known"),
        ({"url": "empty"}, "nothing to serve"),
        ({"url": "a", "engine": "Pyhton"}, "engine=Pyhton: expected Python"),
    ],
)
async def test_a_wrong_registration_is_refused(
    site: Site, tmp_path: Path, parameters: dict[str, str], message: str
) -> None:
    directory(tmp_path)
    (tmp_path / "empty").mkdir()
    assert message in await refused(await register(site, **parameters), 400)
    assert set(site.models) == {"m:"}


async def test_bodies_that_can_not_be_read(site: Site) -> None:
    assert "valid JSON" in await refused(await site.client.post("/models", content=b"{url"), 400)
    multipart = await site.client.post("/models", files={"url": b"a"})
    assert "multipart/form-data" in await refused(multipart, 415)


async def test_nothing_is_there(site: Site, tmp_path: Path) -> None:
    message = await refused(await register(site, url="none"), 404, "ModelNotFoundException")
    assert message.endswith("/none: no such file or directory")
    assert set(site.models) == {"m:"}


async def test_a_model_that_does_not_load_is_not_there_afterwards(site: Site, tmp_path: Path) -> None:
    url = directory(tmp_path, **{"option.load": "fail"})
    message = await refused(await register(site, url=url), 500, "InternalServerException")
    assert message == "model 'a' did not load: ZeroDivisionError: \"oops\""
    assert set(site.models) == {"m:"}
    directory(tmp_path)
    assert (await register(site, url=url)).status_code == 200


async def test_a_registration_that_nobody_waits_for(site: Site, tmp_path: Path) -> None:
    url = directory(tmp_path, **{"option.load": "later"})
    answer = await register(site, url=url, synchronous=False)
    assert (answer.status_code, answer.json()) == (202, {"status": 'Model "a" registration scheduled.'})
    assert (await described(site))["status"] == "PENDING"
    assert {"modelName": "a", "modelUrl": str(url), "status": "PENDING"} in (await of(site, "GET", "/models"))[0][
        "models"
    ]
    await until(lambda: site.models["a:"].ready)
    assert (await described(site))["status"] == "Healthy"


async def test_why_it_failed_is_described(site: Site, tmp_path: Path) -> None:
    await register(site, url=directory(tmp_path, **{"option.load": "fail"}), synchronous=False)
    await register(site, url="none", synchronous=False)
    await until(lambda: all(site.models[name].settled.is_set() for name in ("a:", "none:")))
    told = await described(site)
    assert told["status"] == "FAILED" and "ZeroDivisionError" in told["failure"]
    assert "no such file" in (await described(site, "none"))["failure"]
    listed = {model["modelName"]: model["status"] for model in (await of(site, "GET", "/models"))[0]["models"]}
    assert listed == {"m": "READY", "a": "FAILED", "none": "FAILED"}


async def test_requests_that_name_no_model_stay_with_the_one_that_was_there(site: Site, tmp_path: Path) -> None:
    await register(site, url=directory(tmp_path))
    answers = await asyncio.gather(*(site.post(do="echo") for _ in range(3)))
    assert {answer.status_code for answer in answers} == {200}
    await site.client.delete("/models/m")
    await register(site, url=directory(tmp_path, "b"))
    assert "model_name is required" in (await site.post(do="echo")).text


# ------------------------------------------------------------------------------------ reload


async def test_a_name_is_taken_unless_the_model_is_to_be_replaced(site: Site, tmp_path: Path) -> None:
    url = directory(tmp_path)
    await register(site, url=url, model_version="1")
    assert "version 1 is registered already; reload=true replaces it" in await refused(
        await register(site, url=url, model_version="1"), 409
    )
    assert (await register(site, url=url, model_version="2")).status_code == 200
    moved = directory(tmp_path, "moved")
    assert (await register(site, url=moved, model_name="a", model_version="1", reload=True)).status_code == 200
    workflows, _ = await of(site, "GET", "/models/a")
    assert [(one["version"], one["models"][0]["modelUrl"]) for one in workflows] == [("1", str(moved)), ("2", str(url))]
    only, _ = await of(site, "GET", "/models/a/2")
    assert [one["version"] for one in only] == ["2"]


async def test_a_failed_reload_keeps_the_serving_model(site: Site, tmp_path: Path) -> None:
    url = directory(tmp_path)
    await register(site, url=url, min_worker=2)
    directory(tmp_path, **{"option.load": "fail"})
    failed = await refused(await register(site, url=url, reload=True), 500, "InternalServerException")
    assert "ZeroDivisionError" in failed
    assert (await described(site))["reloadFailure"] == failed
    gone = await refused(await register(site, url="none", model_name="a", reload=True), 404, "ModelNotFoundException")
    assert gone.endswith("no such file or directory")
    model = await described(site)
    assert (model["status"], model["modelUrl"]) == ("Healthy", str(url)) and "no such file" in model["reloadFailure"]
    assert (await site.post("/predictions/a", do="echo")).status_code == 200
    directory(tmp_path)
    assert (await register(site, url=url, reload=True)).status_code == 200
    assert "reloadFailure" not in await described(site)


async def test_a_model_is_loaded_again_from_where_it_was(site: Site, tmp_path: Path) -> None:
    """Whoever has not registered it does not know its URL, of which descriptions leave out what is secret."""
    url = directory(tmp_path, batch_size=2)
    await register(site, url=url, model_version="1", job_queue_size=7)
    await register(site, url=directory(tmp_path, "b"), model_name="a", model_version="2")
    directory(tmp_path, batch_size=4)
    again = await register(site, model_name="a", model_version="1", reload=True, max_batch_delay=9)
    assert again.status_code == 200
    workflows, _ = await of(site, "GET", "/models/a")
    first, second = (one["models"][0] for one in workflows)
    assert (first["modelUrl"], first["batchSize"], first["queueSize"]) == (str(url), 4, 7)
    assert first["maxBatchDelayMillis"] == 9
    assert second["modelUrl"] == str(tmp_path / "b")
    assert "no model 'a'" in await refused(
        await register(site, model_name="a", reload=True), 404, "ModelNotFoundException"
    )
    assert (await refused(await register(site, reload=True), 400)).startswith("model_name: required")


async def test_workers_that_a_reload_asks_for(site: Site, tmp_path: Path) -> None:
    url = directory(tmp_path)
    await register(site, url=url)
    await site.client.put("/models/a?min_worker=3")
    await register(site, url=url, reload=True)
    assert (await described(site))["workerGroups"][0]["minWorkers"] == 3
    await register(site, url=url, reload=True, min_worker=2)
    assert (await described(site))["workerGroups"][0]["minWorkers"] == 2


# ------------------------------------------------------------------------------------ list


async def test_pages_of_the_list(site: Site, tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        await register(site, url=directory(tmp_path, name))
    names, token = [], "0"
    while token:
        page, _ = await of(site, "GET", f"/models?limit=2&next_page_token={token}")
        assert 0 < len(page["models"]) <= 2
        names += [model["modelName"] for model in page["models"]]
        token = page.get("nextPageToken")
    assert names == ["a", "b", "c", "m"]
    assert (await of(site, "GET", "/models?limit=1000"))[0].keys() == {"models"}
    for wrong in ("limit=0", "limit=x", "next_page_token=-1", "page=1"):
        name = wrong.partition("=")[0]
        assert (await refused(await site.client.get(f"/models?{wrong}"), 400)).startswith(f"{name}: ")
    assert (await of(site, "GET", "/models?next_page_token=99"))[0] == {"models": []}


async def test_workflows_are_models(site: Site, tmp_path: Path) -> None:
    directory(tmp_path)
    told, status = await of(site, "POST", "/workflows?url=a&model_version=1")
    assert (told, status) == ({"status": 'Workflow "a" registered.'}, 200)
    told, _ = await of(site, "GET", "/workflows?limit=1")
    assert told["workflows"] == [{"workflowName": "a", "version": "1"}] and told["nextPageToken"] == "1"
    assert told["models"][0]["modelName"] == "a"
    for path in ("/workflows/a", "/workflows/a/1"):
        paths = (path, path.replace("workflows", "models"))
        (workflow,), (model,) = [(await of(site, "GET", same))[0] for same in paths]
        for (described,) in (workflow["models"], model["models"]):
            assert described.pop("idleSeconds") >= 0  # grows
        assert workflow == model
    assert (await of(site, "PUT", "/workflows/a/1?min_worker=2"))[1] == 200
    assert (await of(site, "DELETE", "/workflows/a/1"))[0] == {"status": 'Workflow "a" unregistered'}
    assert (await of(site, "GET", "/workflows/a"))[1] == 404


# ------------------------------------------------------------------------------------ scale, unregister


async def test_workers_come_and_go(site: Site) -> None:
    told, status = await of(site, "PUT", "/models/m?min_worker=3&max_worker=4")
    words = 'Workflow "m" worker scaled. New Worker configuration min workers:3 max workers:4'
    assert (told, status) == ({"status": words}, 200)
    assert len((await described(site, "m"))["workerGroups"][0]["workers"]) == 3
    told, status = await of(site, "PUT", "/models/m", json={"min_worker": 1, "synchronous": False})
    assert (told, status) == ({"status": "Worker updated"}, 202)
    await until(lambda: len(site.model.workers.always) == 1)


async def test_every_version_is_scaled_unless_one_is_named(site: Site, tmp_path: Path) -> None:
    for version in ("1", "2"):
        await register(site, url=directory(tmp_path), model_version=version)
    await register(site, url=directory(tmp_path))
    told, _ = await of(site, "PUT", "/models/a?min_worker=2")
    assert told["status"].count("min workers:2") == 3
    await of(site, "PUT", "/models/a/1?min_worker=1")
    assert {name: len(model.workers.always) for name, model in site.models.items()} == {
        "m:": 1,
        "a:1": 1,
        "a:2": 2,
        "a:": 2,
    }


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/models/m?min_worker=0", 400, 'min_worker: expected an integer >= 1, got "0"'),
        ("/models/m?min_worker=2&max_worker=1", 400, "max_worker: expected at least min_worker (2), got 1"),
        ("/models/m?device=gpu3", 400, 'device: expected none, or "*": all of the model\'s devices are scaled'),
        ("/models/m?batch_size=3", 400, "batch_size: there is no such parameter"),
        ("/models/none", 404, "there is no model 'none'; loaded: m"),
        ("/models/m/7", 404, "model 'm' has no version '7'"),
    ],
)
async def test_scaling_that_is_refused(site: Site, path: str, status: int, message: str) -> None:
    kind = "BadRequestException" if status == 400 else "ModelNotFoundException"
    assert message in await refused(await site.client.put(path), status, kind)


async def test_a_model_that_is_not_ready_is_not_scaled(site: Site, tmp_path: Path) -> None:
    await register(site, url=directory(tmp_path, **{"option.load": "fail"}), synchronous=False)
    await until(lambda: site.models["a:"].settled.is_set())
    answer = await site.client.put("/models/a?min_worker=2")
    assert await refused(answer, 503, "ServiceUnavailableException") == "model 'a' is not ready: FAILED"


async def test_a_model_goes_when_its_requests_are_answered(site: Site) -> None:
    asked = asyncio.create_task(site.post("/predictions/m", do="echo", sleep_s=0.3))
    await until(lambda: site.model.pool.in_flight == 1)
    told, status = await of(site, "DELETE", "/models/m")
    assert (told, status) == ({"status": 'Workflow "m" unregistered'}, 200)
    assert asked.done() and (await asked).status_code == 200
    assert await refused(await site.client.delete("/models/m"), 404, "ModelNotFoundException")


async def test_a_version_or_all_versions_are_unregistered(site: Site, tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        await register(site, url=directory(tmp_path), model_version=version)
    await of(site, "DELETE", "/models/a/2")
    assert set(site.models) == {"m:", "a:1", "a:3"}
    await of(site, "DELETE", "/models/a")
    assert set(site.models) == {"m:"}


async def test_an_unloaded_model_can_be_deleted(site: Site) -> None:
    await site.client.post("/v2/repository/models/m/unload")
    assert (await of(site, "DELETE", "/models/m"))[1] == 200
    assert (await site.client.post("/v2/repository/models/m/load")).status_code == 404
    assert (await of(site, "DELETE", "/models/m"))[1] == 404


async def test_of_a_model_that_is_gone_no_metric_stays(site: Site, tmp_path: Path) -> None:
    url = directory(tmp_path)
    for _ in range(2):
        await register(site, url=url, model_version="1")
        for order in ({"do": "echo"}, {"do": "stream"}, {"do": "headers", "status": 500}):
            await site.post("/predictions/a", **order)
        text = (await site.client.get("/metrics")).text
        assert 'model="a",version="1"' in text and 'djl_requests_total{code="500"' in text
        assert 'djl_requests_total{code="200",dialect="lmi",model="a",version="1"} 2.0' in text
        await of(site, "DELETE", "/models/a")
        assert 'model="a"' not in (await site.client.get("/metrics")).text
    assert 'model="m"' in (await site.client.get("/metrics")).text


# ------------------------------------------------------------------------------------ the server


async def test_the_one_without_a_version_can_be_meant(site: Site, tmp_path: Path) -> None:
    path = directory(tmp_path)
    for parameters in ({}, {"model_version": "1"}):
        await register(site, url=path, **parameters)
    (only,), _ = await of(site, "GET", "/models/a?unversioned=true")
    assert "version" not in only
    assert (await of(site, "PUT", "/models/a?unversioned=true&min_worker=2"))[1] == 200
    assert {label: len(model.workers.always) for label, model in site.models.items()} == {"m:": 1, "a:": 2, "a:1": 1}
    message = await refused(await site.client.delete("/models/a/1?unversioned=true"), 400)
    assert message == "unversioned: expected false or none, as the path has a version"
    assert (await of(site, "DELETE", "/models/a?unversioned=true"))[1] == 200
    assert set(site.models) == {"m:", "a:1"}
    await refused(await site.client.delete("/models/a?unversioned=true"), 404, "ModelNotFoundException")


@pytest.fixture
def log_level() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level = root.level
    yield root
    root.setLevel(level)


@pytest.mark.parametrize(
    ("query", "level"),
    [
        ("", 20),
        ("?level=debug", 10),
        ("?level=TRACE", 10),
        ("?level=Warn", 30),
        ("?level=error", 40),
        ("?level=off", 60),
    ],
)
async def test_the_log_level_can_be_changed(site: Site, log_level: logging.Logger, query: str, level: int) -> None:
    assert await of(site, "POST", f"/server/logging{query}") == ({"status": "OK"}, 200)
    assert log_level.level == level


async def test_a_level_that_there_is_not(site: Site, log_level: logging.Logger) -> None:
    message = await refused(await site.client.post("/server/logging?level=loud"), 400)
    assert message == 'level: expected TRACE, DEBUG, INFO, WARN, ERROR, FATAL or OFF, got "loud"'


async def test_metrics_by_name(site: Site) -> None:
    every = await site.client.get("/server/metrics")
    assert every.headers["content-type"].startswith("text/plain") and "djl_requests_total" in every.text
    some = (await site.client.get("/server/metrics?name[]=djl_workers&name[]=djl_queued_requests")).text
    assert {line.split()[2] for line in some.splitlines() if line.startswith("# TYPE")} == {
        "djl_workers",
        "djl_queued_requests",
    }


async def test_a_server_that_ends_is_not_changed_any_more(site: Site, tmp_path: Path) -> None:
    site.front_end.draining.begun = True
    answer = await register(site, url=directory(tmp_path))
    assert "shutting down" in await refused(answer, 503, "ServiceUnavailableException")

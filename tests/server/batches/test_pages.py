"""OpenAI's files and batches over HTTP, with fake workers; and what a server that comes later makes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError

from tests.server.batches.serving import ENDED, URL, Served, create, lines, results, serving, status, upload
from tests.server.harness import model_config, running, until
from tests.server.in_process import InProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "batches"


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Served]:
    async with serving(folder) as made:
        yield made


# ------------------------------------------------------------------------------------------------ files


async def test_a_file_is_uploaded_listed_read_and_deleted(site: Served) -> None:
    _, client = site
    content = lines({}) * 20_000  # more than a page's body may have
    made = await client.files.create(file=("my input.jsonl", content), purpose="batch")
    assert (made.filename, made.bytes, made.purpose, made.object) == ("my input.jsonl", len(content), "batch", "file")
    assert made.expires_at == made.created_at + 30 * 24 * 3600
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).content == content
    assert [file.id async for file in client.files.list()] == [made.id]
    assert (await client.files.delete(made.id)).deleted
    assert [file.id async for file in client.files.list()] == []
    with pytest.raises(NotFoundError) as missing:
        await client.files.retrieve(made.id)
    assert missing.value.body == {
        "message": f"No such File object: {made.id}",
        "type": "invalid_request_error",
        "param": "id",
        "code": None,
    }


async def test_a_file_whose_content_is_gone(site: Served, folder: Path) -> None:
    _, client = site
    file_id = await upload(client, b"x")
    (folder / "files" / file_id).unlink()
    with pytest.raises(InternalServerError, match="the file can't be read"):
        await client.files.content(file_id)


async def test_files_are_listed_in_pages(site: Served) -> None:
    _, client = site
    made = [await upload(client, lines({})) for _ in range(5)]
    assert [file.id async for file in client.files.list(limit=2)] == made[::-1]
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == made
    assert (await client.files.list(limit=2)).has_more
    assert [file.id for file in (await client.files.list(after=made[1], order="asc", limit=2)).data] == made[2:4]
    assert not (await client.files.list(purpose="batch_output")).data


async def test_a_file_goes_when_it_expires(folder: Path) -> None:
    options: Any = {"expires_after": {"anchor": "created_at", "seconds": 3600}}
    async with serving(folder) as (_, client):
        made = await client.files.create(file=lines({}), purpose="batch", **options)
        assert made.expires_at == made.created_at + 3600
    known = folder / "files" / f"{made.id}.json"
    known.write_text(json.dumps({**json.loads(known.read_text()), "expires_at": made.created_at - 1}))  # an hour later
    async with serving(folder) as (_, client):
        with pytest.raises(NotFoundError):
            await client.files.retrieve(made.id)
        await until(lambda: not any((folder / "files").iterdir()))


@pytest.mark.parametrize(
    ("call", "status_code", "param"),
    [
        (lambda client: client.files.create(file=b"{}", purpose="fine-tune"), 400, "purpose"),
        (lambda client: client.files.create(file=b"", purpose="batch"), 400, "file"),
        (
            lambda client: client.files.create(
                file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
            ),
            *(400, "expires_after.seconds"),
        ),
        (lambda client: client.files.create(file=b"{}", purpose="batch", extra_body={"size": 3}), 400, "size"),
        (lambda client: client.files.list(limit=0), 400, "limit"),
        (lambda client: client.files.list(after="file-x"), 400, "after"),
        (lambda client: client.files.content("file-x"), 404, "id"),
        (lambda client: client.files.delete("..%2Flock"), 404, "id"),
        (lambda client: client.post("/files", cast_to=object, body={"purpose": "batch"}), 415, None),
        (lambda client: client.batches.retrieve("batch_x"), 404, "batch_id"),
        (lambda client: client.batches.cancel("batch_x"), 404, "batch_id"),
        (lambda client: client.batches.list(limit=101), 400, "limit"),
        (lambda client: client.get("/batches?before=3", cast_to=object), 400, "before"),
    ],
)
async def test_refusals_name_the_field(
    site: Served, call: Callable[[AsyncOpenAI], Awaitable[Any]], status_code: int, param: str | None
) -> None:
    with pytest.raises(APIStatusError) as refused:
        await call(site[1])
    body: Any = refused.value.body
    assert (refused.value.status_code, body["param"], body["type"]) == (status_code, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra_body": {"priority": 1}}, "priority"),
    ],
)
async def test_a_batch_that_cant_be_created(site: Served, changed: dict[str, Any], param: str) -> None:
    _, client = site
    wanted: dict[str, Any] = {"input_file_id": await upload(client, lines({})), "endpoint": URL}
    with pytest.raises(BadRequestError) as refused:
        await client.batches.create(**{**wanted, "completion_window": "24h", **changed})
    body: Any = refused.value.body
    assert body["param"] == param and body["message"].startswith(f"{param}: ")


async def test_uploaded_files_are_bounded_in_number_and_size(folder: Path) -> None:
    async with serving(folder, batch_max_files=2, batch_max_bytes=1000, batch_max_file_bytes=5000) as (_, client):
        await upload(client, b"x" * 600)
        with pytest.raises(APIStatusError, match="batch_max_bytes"):
            await upload(client, b"x" * 600)
        with pytest.raises(APIStatusError, match="batch_max_file_bytes, which is 5000 bytes"):
            await upload(client, b"x" * 6000)
        await upload(client, b"x")
        with pytest.raises(APIStatusError, match="batch_max_files"):
            await upload(client, b"x")


async def test_without_a_directory_there_are_none() -> None:
    async with running(placement=InProcess()) as site:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/batches")):
            answer = await site.client.request(method, path)
            assert answer.status_code == 404
            assert "batch_directory" in answer.json()["error"]["message"]


# ------------------------------------------------------------------------------------------------ batches


async def test_a_batch_is_answered(site: Served) -> None:
    _, client = site
    content = lines({}, {"do": "headers", "status": 400}, {"sleep_s": 0.05}, *[{}] * 30)
    metadata = {"for": "a test"}
    made = await create(client, content, metadata=metadata)
    assert (made.status, made.object, made.metadata, made.endpoint) == ("validating", "batch", metadata, URL)
    ended = await status(client, made, *ENDED)
    assert ended.status == "completed" and ended.completed_at and ended.in_progress_at and ended.finalizing_at
    counts = ended.request_counts
    assert counts is not None and (counts.total, counts.completed, counts.failed) == (33, 32, 1)
    output = await results(client, ended.output_file_id)
    assert [one["custom_id"] for one in output] == [f"r{number}" for number in range(33) if number != 1]
    response = output[0]["response"]
    assert response["status_code"] == 200 and response["body"]["path"] == URL
    assert response["request_id"] == response["body"]["headers"]["x-request-id"]
    (failed,) = await results(client, ended.error_file_id)
    assert failed["custom_id"] == "r1" and failed["response"]["status_code"] == 400
    assert ended.output_file_id is not None
    file = await client.files.retrieve(ended.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{made.id}_output.jsonl")


async def test_a_batchs_usage_sums_that_of_its_answers(site: Served) -> None:
    _, client = site
    plain = {"prompt_tokens": 9, "completion_tokens": 2}
    told = plain | {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    made = await create(client, lines(*({"do": "usage", "usage": usage} for usage in (plain, told, told)), {}))
    usage = (await status(client, made, *ENDED)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (27, 6, 33)
    assert usage.input_tokens_details.cached_tokens == 8
    assert usage.output_tokens_details.reasoning_tokens == 2


async def test_an_input_with_faults_fails(site: Served) -> None:
    _, client = site
    first = lines({"stream": True})
    made = await create(client, first + b"{\n" + lines({}) + b'{"custom_id": "x", "method": "POST", "url": "/y"}')
    ended = await status(client, made, *ENDED)
    assert ended.status == "failed" and ended.failed_at and ended.errors is not None
    assert [(one.line, one.code, one.param) for one in ended.errors.data or ()] == [
        (1, "invalid_request", "body.stream"),
        (2, "invalid_json_line", None),
        (4, "invalid_url", "url"),
    ]
    assert ended.output_file_id is None and ended.error_file_id is None


async def test_a_batch_has_so_many_requests(folder: Path) -> None:
    async with serving(folder, batch_max_requests=2) as (_, client):
        ended = await status(client, await create(client, lines({}, {}, {})), *ENDED)
        assert ended.status == "failed" and ended.errors is not None and ended.errors.data is not None
        assert ended.errors.data[0].code == "too_many_requests"


async def test_batches_are_listed_in_pages_the_newest_first(site: Served) -> None:
    _, client = site
    made = [await create(client, lines({})) for _ in range(3)]
    for one in made:
        await status(client, one, *ENDED)
    assert [one.id async for one in client.batches.list(limit=2)] == [one.id for one in made[::-1]]
    assert (await client.batches.list(limit=2)).has_more


async def test_a_batch_is_cancelled_with_what_it_has(site: Served) -> None:
    served, client = site
    made = await create(client, lines({}, *[{"do": "hang"}] * 5))
    while (batch := await status(client, made, "in_progress")).request_counts.completed == 0:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    with pytest.raises(BadRequestError, match="which has not ended, reads this file"):
        await client.files.delete(batch.input_file_id)
    assert (await client.batches.cancel(made.id)).status == "cancelling"
    ended = await status(client, made, *ENDED)
    assert ended.status == "cancelled" and ended.cancelling_at and ended.cancelled_at
    assert [one["custom_id"] for one in await results(client, ended.output_file_id)] == ["r0"]
    errors = await results(client, ended.error_file_id)
    assert [(one["custom_id"], one["error"]["code"]) for one in errors] == [
        (f"r{number}", "batch_cancelled") for number in range(1, 6)
    ]
    await until(lambda: served.model.pool.in_flight == 0)
    with pytest.raises(BadRequestError, match="a batch with status 'cancelled' can't be cancelled"):
        await client.batches.cancel(made.id)


async def test_the_number_of_running_batches_is_bounded(folder: Path) -> None:
    async with serving(folder, batch_max_running=1) as (_, client):
        first = await create(client, lines({"do": "hang"}))
        await status(client, first, "in_progress")
        second = await create(client, lines({}))
        await client.batches.cancel(first.id)
        assert (await status(client, second, *ENDED)).status == "completed"
        third, fourth = await create(client, lines({"do": "hang"})), await create(client, lines({}))
        await status(client, third, "in_progress")
        assert (await client.batches.retrieve(fourth.id)).status == "validating"
        await client.batches.cancel(fourth.id)
        assert (await status(client, fourth, *ENDED)).status == "cancelled"


async def test_interactive_requests_go_first(site: Served) -> None:
    """A batch has half of the places, and as many others are admitted as if it were not there."""
    served, client = site
    made = await create(client, lines(*[{"do": "hang"}] * 100))
    await until(lambda: served.model.pool.in_flight == 2)
    assert served.model.pool.queued == 0
    answers = await asyncio.gather(*(served.post(do="echo", sleep_s=0.01) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert served.model.pool.in_flight == 2
    await client.batches.cancel(made.id)


async def test_batches_survive_a_server(folder: Path) -> None:
    """One stops in the middle; the next goes on, and asks for nothing twice that was answered."""
    slow = {"do": "echo", "sleep_s": 0.5}
    async with serving(folder, capacity=2) as (_, client):
        made = await create(client, lines(*[{}] * 10, *[slow] * 50))
        waiting = [await create(client, lines({})) for _ in range(3)]
        while (await client.batches.retrieve(made.id)).request_counts.completed < 10:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    journal = folder / "batches" / f"{made.id}.journal"
    kept = [json.loads(record)["result"]["id"] for record in journal.read_bytes().splitlines()[1:]]
    assert 10 <= len(kept) < 60
    (folder / "files" / "file-of-a-kill").write_bytes(b"not complete")
    async with serving(folder, capacity=64) as (_, client):
        ended = await status(client, made, *ENDED)
        assert ended.status == "completed"
        output = await results(client, ended.output_file_id)
        assert [one["custom_id"] for one in output] == [f"r{number}" for number in range(60)]
        assert set(kept) <= {one["id"] for one in output}
        for one in waiting:
            assert (await status(client, one, *ENDED)).status == "completed"
        await until(lambda: not list(folder.glob("batches/*.journal")))
    assert not (folder / "files" / "file-of-a-kill").exists()


async def test_a_batch_expires(folder: Path) -> None:
    async with serving(folder) as (_, client):
        made = await create(client, lines({}, {"do": "hang"}), window="1h")
        assert made.expires_at == made.created_at + 3600
        while (await client.batches.retrieve(made.id)).request_counts.completed < 1:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    state = folder / "batches" / f"{made.id}.json"
    kept = json.loads(state.read_text())
    kept["batch"]["expires_at"] = made.created_at  # an hour later
    state.write_text(json.dumps(kept))
    async with serving(folder) as (_, client):
        ended = await status(client, made, *ENDED)
        assert ended.status == "expired" and ended.expired_at
        assert [one["custom_id"] for one in await results(client, ended.output_file_id)] == ["r0"]
        assert [one["error"]["code"] for one in await results(client, ended.error_file_id)] == ["batch_expired"]


async def test_a_batch_that_came_before_the_start_is_run_once(site: Served) -> None:
    """A server whose port opens before its models have loaded starts batches when they have."""
    served, client = site
    made = await create(client, lines({"do": "hang"}, {}))
    served.front_end.batches.start()
    await status(client, made, "in_progress")
    await until(lambda: served.model.pool.in_flight == 1)
    await client.batches.cancel(made.id)
    assert (await status(client, made, *ENDED)).status == "cancelled"
    await until(lambda: served.model.pool.in_flight == 0)


async def test_a_server_that_ends_begins_no_batch(site: Served) -> None:
    served, client = site
    file_id = await upload(client, lines({}))
    await served.front_end.batches.close()
    with pytest.raises(InternalServerError, match="shutting down"):
        await client.batches.create(input_file_id=file_id, endpoint=URL, completion_window="24h")


async def test_a_second_server_can_not_use_the_batch_directory(folder: Path) -> None:
    async with serving(folder):
        with pytest.raises(Exception, match="another server uses this directory"):
            async with serving(folder):
                pass


async def test_a_model_that_is_loaded_again_goes_on_with_a_batch(site: Served) -> None:
    served, client = site
    made = await create(client, lines(*[{"sleep_s": 0.02}] * 40))
    await status(client, made, "in_progress")
    await served.registry.reload("m", "")
    ended = await status(client, made, *ENDED)
    assert ended.request_counts is not None and ended.request_counts.completed == 40


async def test_models_are_named_by_bodies(folder: Path) -> None:
    configs = (model_config("a"), model_config("b"))
    async with (
        running(*configs, placement=InProcess(), batch_directory=str(folder)) as site,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{site.port}/v1", api_key="none") as client,
    ):
        content = lines({"model": "b"}, {"model": "none"}, {})
        ended = await status(client, await create(client, content), *ENDED)
        assert [one["custom_id"] for one in await results(client, ended.output_file_id)] == ["r0"]
        errors = await results(client, ended.error_file_id)
        assert [(one["custom_id"], one["response"]["status_code"]) for one in errors] == [("r1", 404), ("r2", 400)]


async def test_a_client_that_leaves_a_download(site: Served) -> None:
    """It is noticed, and the server goes on."""
    served, client = site
    file_id = await upload(client, b"x" * (4 << 20))
    url = f"http://127.0.0.1:{served.port}/v1/files/{file_id}/content"
    async with httpx.AsyncClient() as other, other.stream("GET", url) as answer:
        assert answer.status_code == 200
    assert (await client.files.content(file_id)).content == b"x" * (4 << 20)

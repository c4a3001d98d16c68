"""Responses that are kept, by a real server and as OpenAI's client asks for them.

The model repeats its prompt, so that an answer shows which items it was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from djl_python.core import budgets
from djl_python.core.access.api_key import ApiKey, digest
from djl_python.core.access.scopes import Scope
from djl_python.server.keys.key_file import add_key
from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

TEMPLATE = "{% for message in messages %}[{{ message.role }}:{{ message.content }}]{% endfor %}"
TOKENS = 60
#: More than the slow model gives while a test runs.
LONG = 1_000


def model(path: Path, *options: str) -> Path:
    write_byte_tokenizer(path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    lines = (f"option.model_id={path}", f"option.rolling_batch={FAKE_ENGINE}", *options)
    (path / "serving.properties").write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    fast = model(folder / "fast", "option.max_model_len=2000", "minWorkers=2", "maxWorkers=2")
    return f"fast={fast},slow={model(folder / 'slow', 'option.fake_step_ms=20', 'option.max_model_len=2000')}"


@pytest.fixture(scope="module")
def server(models: str) -> Iterator[RunningServer]:
    with running_server("-m", models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def client_of(server: RunningServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def created(client: openai.OpenAI, text: Any, name: str = "fast", **more: Any) -> Response:
    response = client.responses.create(**{"model": name, "input": text, "max_output_tokens": TOKENS} | more)
    assert isinstance(response, Response)
    return response


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def status_of(client: openai.OpenAI, response: Response) -> str | None:
    return client.responses.retrieve(response.id).status


# ------------------------------------------------------------------------------------------------ conversations


def test_a_response_goes_on_with_the_ones_before_it(client: openai.OpenAI) -> None:
    """With their items and not with their instructions, whichever worker answers."""
    first = created(client, "a", instructions="I", max_output_tokens=16)
    assert first.output_text == "[system:I][user:"
    second = created(client, [{"role": "user", "content": "b"}], previous_response_id=first.id)
    so_far = f"[user:a][assistant:{first.output_text}][user:b]"
    assert second.output_text.startswith(so_far) and second.previous_response_id == first.id
    with client.responses.stream(
        model="fast", input="c", previous_response_id=second.id, store=False, max_output_tokens=200
    ) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.output_text.startswith(f"{so_far}[assistant:{second.output_text}][user:c]")


def test_a_response_of_a_tool_is_gone_on_with_by_its_output_alone(client: openai.OpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    first = created(client, items, max_output_tokens=1)
    output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "y"}]
    second = created(client, output, previous_response_id=first.id)
    assert "[tool:x]" in second.output_text and "[tool:y]" in second.output_text


def test_large_inputs_are_gone_on_with_too(client: openai.OpenAI) -> None:
    first = created(client, "a", max_output_tokens=1, metadata={str(i): "x" * 500 for i in range(9)})
    pad: Any = {"user": "x" * 100_000}  # a label, which the prompt has no part of
    second = created(client, "b", previous_response_id=first.id, **pad)
    assert second.output_text.startswith("[user:a][assistant:[][user:b]")


# ------------------------------------------------------------------------------------------------ what is kept


def test_a_response_is_found_until_it_is_deleted(client: openai.OpenAI) -> None:
    response = created(client, "a", metadata={"topic": "x"})
    assert response.store is True  # type: ignore[attr-defined]
    assert client.responses.retrieve(response.id) == response
    later = created(client, "b", previous_response_id=response.id)
    client.responses.delete(response.id)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{response.id}' not found"):
            ask(response.id)
    with pytest.raises(openai.BadRequestError) as refused:
        created(client, "c", previous_response_id=later.id)
    error = refused.value
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")
    assert error.message.endswith(f"Previous response with id '{response.id}' not found.")


def test_a_streamed_response_is_kept_as_its_stream_ended(client: openai.OpenAI) -> None:
    with client.responses.stream(model="fast", input="a", max_output_tokens=TOKENS) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert client.responses.retrieve(last.response.id).model_dump() == last.response.model_dump(
        exclude={"output_parsed"}, exclude_unset=False
    ) | {"output": client.responses.retrieve(last.response.id).model_dump()["output"]}
    assert client.responses.retrieve(last.response.id).output_text == last.response.output_text


def test_nothing_is_kept_that_is_not_to_be_kept(client: openai.OpenAI, server: RunningServer) -> None:
    response = created(client, "a", store=False)
    assert response.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError):
        created(client, "a", max_output_tokens=0)
    with httpx.stream(
        "POST", f"{server.url}/v1/responses", json={"model": "slow", "input": "a", "stream": True}, timeout=60
    ) as stream:
        lines = stream.iter_lines()
        begun = next(line for line in lines if line.startswith("data: "))
    response_id = begun.partition('"id":"')[2].partition('"')[0]
    assert response_id.startswith("resp_")
    with pytest.raises(openai.NotFoundError):  # its client has left before it was complete
        client.responses.retrieve(response_id)


def test_input_items_are_listed_in_pages(client: openai.OpenAI) -> None:
    items: Any = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_own"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    response = created(client, items)
    listed: list[Any] = list(client.responses.input_items.list(response.id, order="asc", limit=3))  # asks twice
    assert [item.type for item in listed] == ["message", "message", "function_call", "function_call_output"]
    assert [item.content[0].text for item in listed[:2]] == ["d", "u"]
    ids = [item.id for item in listed]
    assert len(set(ids)) == 4 and ids[2] == "fc_own"
    newest = client.responses.input_items.list(response.id, limit=2)
    assert [item.id for item in newest.data] == ids[:1:-1] and newest.has_more
    after = client.responses.input_items.list(response.id, after=ids[1])
    assert [item.id for item in after.data] == ids[:1] and not after.has_more
    text: Any = client.responses.input_items.list(created(client, "just text").id).data[0]
    assert (text.role, text.content[0].text) == ("user", "just text")
    with pytest.raises(openai.BadRequestError, match="after: there is no item"):
        client.responses.input_items.list(response.id, after="zzz")


def test_unserved_features_are_refused_by_name(client: openai.OpenAI) -> None:
    response = created(client, "a")
    with pytest.raises(openai.BadRequestError, match="stream: only of a response that was made with") as refused:
        client.responses.retrieve(response.id, stream=True)
    assert refused.value.param == "stream"
    with pytest.raises(openai.BadRequestError, match="starting_after: only with stream=true"):
        client.responses.retrieve(response.id, extra_query={"starting_after": 3})
    client.responses.retrieve(response.id, include=["reasoning.encrypted_content"])
    with pytest.raises(openai.BadRequestError, match="background=true can be cancelled"):
        client.responses.cancel(response.id)


# ------------------------------------------------------------------------------------------------ in the background


def test_a_response_in_the_background_is_made_after_its_answer(client: openai.OpenAI) -> None:
    waited = created(client, "a")
    response = created(client, "a", background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    until(lambda: status_of(client, response) not in ("queued", "in_progress"))
    done = client.responses.retrieve(response.id)
    assert (done.status, done.output_text, done.background) == (waited.status, waited.output_text, True)
    assert done.usage == waited.usage
    assert client.responses.cancel(response.id) == done  # too late
    assert created(client, "b", previous_response_id=response.id).output_text.startswith("[user:a][assistant:")


def test_a_stream_in_the_background_is_followed_by_whoever_comes(client: openai.OpenAI) -> None:
    """Its client leaves, comes back for the rest, and another one gets all of it from the beginning."""
    asked: Any = {"model": "slow", "input": "a", "max_output_tokens": 40, "background": True, "stream": True}
    first: list[Any] = []
    with client.responses.create(**asked) as stream:
        for event in stream:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
    response_id = first[0].response.id
    kinds = ["response.created", "response.queued", "response.in_progress", "response.output_item.added"]
    assert [event.type for event in first[:4]] == kinds
    assert [event.response.status for event in first[:3]] == ["queued", "queued", "in_progress"]
    rest: list[Any] = list(
        client.responses.retrieve(response_id, stream=True, starting_after=first[-1].sequence_number)
    )
    made = first + rest
    assert [event.sequence_number for event in made] == list(range(len(made)))
    assert made[-1].type == "response.incomplete"
    assert client.responses.retrieve(response_id).output_text == made[-1].response.output_text
    text = "".join(event.delta for event in made if event.type == "response.output_text.delta")
    assert text == made[-1].response.output_text and len(text) == 40
    assert list(client.responses.retrieve(response_id, stream=True)) == made
    with client.responses.stream(response_id=response_id, starting_after=len(made) - 2) as resumed:
        assert [event.type for event in resumed] == ["response.incomplete"]
    waited = created(client, "a", "slow", max_output_tokens=40)
    assert waited.output_text == text


def test_a_stream_in_the_background_ends_with_its_failure_or_its_cancellation(client: openai.OpenAI) -> None:
    failed: list[Any] = list(client.responses.create(model="fast", input="x" * 3_000, background=True, stream=True))
    assert [event.type for event in failed] == ["response.created", "response.queued", "response.failed"]
    assert [event.sequence_number for event in failed] == [0, 1, 2]
    assert "maximum context length is 2000 tokens" in failed[-1].response.error.message
    with client.responses.create(model="slow", input="a", max_output_tokens=LONG, background=True, stream=True) as made:
        events = iter(made)
        response_id = next(event.response.id for event in events if event.type == "response.in_progress")
        assert client.responses.cancel(response_id).status == "cancelled"
        assert "response.completed" not in [event.type for event in events]
    with pytest.raises(openai.BadRequestError, match="temperature: expected a number"):
        client.responses.create(model="fast", input="a", background=True, stream=True, temperature=9)


def test_values_of_the_responses_before_a_request_are_limited_as_those_of_a_body(client: openai.OpenAI) -> None:
    """Each body is within the limit, and a request of a hundred bytes goes on with both."""
    noted = [{"type": "output_text", "text": "a", "annotations": [0] * (budgets.VALUES.most // 2)}]
    asked = [{"role": "assistant", "content": noted}, {"role": "user", "content": "b"}]
    first = created(client, asked)
    second = created(client, asked, previous_response_id=first.id)
    for waits in (True, False):
        with pytest.raises(
            openai.BadRequestError, match=f"expected at most {budgets.VALUES.most} JSON values"
        ) as refused:
            created(client, "c", previous_response_id=second.id, background=not waits)
        assert refused.value.param == "previous_response_id"


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI, server: RunningServer) -> None:
    response = created(client, "a", "slow", background=True, max_output_tokens=LONG)
    until(lambda: status_of(client, response) == "in_progress")
    with pytest.raises(openai.BadRequestError, match="is in_progress, expected one that has ended"):
        created(client, "b", previous_response_id=response.id)
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == status_of(client, response) == "cancelled"
    until(lambda: 'djl_in_flight_requests{model="slow",version=""} 0.0' in httpx.get(f"{server.url}/metrics").text)


def test_a_response_in_the_background_may_be_deleted_while_it_is_made(client: openai.OpenAI) -> None:
    response = created(client, "a", "slow", background=True, max_output_tokens=LONG)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_response_in_the_background_that_fails_says_why(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature: expected a number"):
        created(client, "a", background=True, temperature=9)
    response = created(client, "x" * 3_000, background=True)
    until(lambda: status_of(client, response) == "failed")
    error = client.responses.retrieve(response.id).error
    assert error is not None and error.code == "invalid_prompt"
    assert "maximum context length is 2000 tokens" in error.message


# ------------------------------------------------------------------------------------------------ who, where, how many


def test_responses_belong_to_the_key_that_made_them(models: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.jsonl"
    for name, scope in {"a": Scope.INFER, "b": Scope.INFER, "operator": Scope.MANAGE}.items():
        add_key(keys, ApiKey(name=name, sha256=digest(f"djl_{name}"), scopes=(scope,)))
    with running_server("-m", models, environment={"SERVING_API_KEYS": str(keys)}) as server:
        mine, others = client_of(server, "djl_a"), client_of(server, "djl_b")
        response = created(mine, "a")
        assert mine.responses.retrieve(response.id).id == response.id
        for ask in (others.responses.retrieve, others.responses.delete, others.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(response.id)
        with pytest.raises(openai.BadRequestError) as refused:
            created(others, "b", previous_response_id=response.id)
        assert refused.value.code == "previous_response_not_found"
        assert client_of(server, "djl_operator").responses.retrieve(response.id).id == response.id


def test_responses_in_a_directory_outlive_the_server(models: str, tmp_path: Path) -> None:
    directory = tmp_path / "responses"
    environment = {"SERVING_RESPONSES_DIRECTORY": str(directory)}
    with running_server("-m", models, environment=environment) as server:
        client = client_of(server)
        first = created(client, "a")
        deleted = created(client, "b")
        client.responses.delete(deleted.id)
        running = created(client, "a", "slow", background=True, max_output_tokens=LONG)
        until(lambda: (directory / f"{running.id}.json").exists() and not (directory / f"{deleted.id}.json").exists())
        assert client.responses.retrieve(first.id) == first  # from the disk
        server.process.kill()
        server.process.wait()
    with running_server("-m", models, environment=environment) as server:
        client = client_of(server)
        assert client.responses.retrieve(first.id) == first
        assert created(client, "c", previous_response_id=first.id).output_text.startswith("[user:a][assistant:")
        failed = client.responses.retrieve(running.id)
        assert failed.status == "failed" and failed.error is not None
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(deleted.id)


def test_the_least_recently_used_response_goes_first(models: str) -> None:
    with running_server("-m", models, environment={"SERVING_RESPONSES_MAX": "2"}) as server:
        client = client_of(server)
        first, second = created(client, "a"), created(client, "b")
        client.responses.retrieve(first.id)
        third = created(client, "c")
        assert [client.responses.retrieve(kept.id).id for kept in (first, third)] == [first.id, third.id]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(second.id)


def test_a_server_may_keep_nothing(models: str) -> None:
    with running_server("-m", models, environment={"SERVING_RESPONSES_MAX": "0"}) as server:
        client = client_of(server)
        response = created(client, "a")
        assert response.store is False  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError, match="no responses are kept here"):
            client.responses.retrieve(response.id)
        for more in ({"previous_response_id": response.id}, {"background": True}):
            with pytest.raises(openai.BadRequestError, match="no response is kept"):
                created(client, "b", **more)

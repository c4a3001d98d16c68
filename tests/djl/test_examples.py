"""Model directories as DJL's public documents teach to write them, in `examples/`, run unmodified by one server."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from djl_python.inputs import Input
from djl_python.np_util import from_nd_list, from_npz, to_nd_list, to_npz
from djl_python.outputs import Output
from djl_python.test_model import TestHandler
from djl_python.testing import RunningServer, running_server

EXAMPLES = Path(__file__).with_name("examples")
SERVED = sorted(path.name for path in EXAMPLES.iterdir() if (path / "serving.properties").is_file())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [option for name in SERVED for option in ("-m", f"{name}={EXAMPLES / name}")]
    environment = {"OPTION_SESSIONS_PATH": str(tmp_path_factory.mktemp("sessions"))}
    with running_server(*models, environment=environment, start_timeout_s=240) as running:
        yield running


@pytest.mark.slow
def test_all_of_them_are_served(server: RunningServer) -> None:
    assert len(SERVED) >= 15
    states = httpx.get(f"{server.url}/ping", timeout=30).json()
    assert {name: state["status"] for name, state in states.items()} == dict.fromkeys(SERVED, "Healthy")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("formatter_legacy", '{"messages": [{"role": "user", "content": '),  # the demo's checkpoint has a template
        ("formatter_request_output", "@request.json   # a file with what the handler reads"),  # its input formatter
        ("custom_handler", "@request.json"),
        ("huggingface_wrapper", "@request.json"),
    ],
)
def test_the_command_that_is_printed_suits_the_handler(server: RunningServer, name: str, body: str) -> None:
    (line,) = (line for line in server.output().splitlines() if "curl " in line and f"/predictions/{name} " in line)
    assert line.partition(" -d ")[2].lstrip("'").startswith(body)


def post(server: RunningServer, name: str, **sent: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/predictions/{name}", timeout=60, **sent)


def answer(server: RunningServer, name: str, body: Any, headers: dict[str, str] | None = None) -> Any:
    response = post(server, name, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_wrapped_service_has_the_dynamic_batch_schema(server: RunningServer) -> None:
    question = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 4}}
    several = {"inputs": ["What is deep learning?", "Hello"], "parameters": {"max_new_tokens": 2}}
    bad = {"inputs": "Hello", "parameters": 5}
    with ThreadPoolExecutor(3) as clients:  # one batch, of which one request is wrong
        answers = list(
            clients.map(lambda body: post(server, "huggingface_wrapper", json=body), [question, several, bad])
        )
    assert [response.status_code for response in answers] == [200, 200, 424]
    assert answers[0].json() == [{"generated_text": " Deep learning is a"}]
    assert answers[1].json() == [{"generated_text": " Deep learning"}, {"generated_text": " Hello!"}]
    assert "parameters: expected an object" in answers[2].json()["error"]
    assert "for LlamaForCausalLM" in server.output()


def test_a_service_object_has_the_models_properties(server: RunningServer) -> None:
    assert answer(server, "custom_handler", {"parts": [1, 2.5]}) == {"length": 3.5, "unit": "cm", "device": "-1"}
    refused = post(server, "custom_handler", json={"parts": [1, "x"]})
    assert refused.status_code == 424
    assert refused.json()["message"] == "invoke handler failure"


def test_requests_of_a_dynamic_batch(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as clients:
        answers = list(
            clients.map(lambda text: answer(server, "dynamic_batch", {"inputs": text}), ["ab", "cd", "ef", "gh"])
        )
    assert [one["reversed"] for one in answers] == ["ba", "dc", "fe", "hg"]
    assert max(one["together"] for one in answers) > 1


def test_a_stream_is_lines_or_what_its_formatter_makes(server: RunningServer) -> None:
    response = post(server, "streaming", json={"inputs": "two words"})
    assert response.headers["content-type"] == "application/jsonlines"
    assert response.text == '{"outputs":"two"}\n{"outputs":"words"}\n'
    response = post(server, "streaming", json={"inputs": "one", "times": 2, "events": True})
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text == "data: one\n\ndata: one\n\n"


def test_answers_by_the_helpers_of_asynchronous_handlers(server: RunningServer) -> None:
    response = post(server, "async_utils", json={"name": "Ada"})
    assert (response.json(), response.headers["x-greeted"]) == ({"greeting": "Hello, Ada! Bye"}, "Ada")
    assert response.headers["content-type"] == "application/json"
    response = post(server, "async_utils", json={"name": "Ada", "stream": True})
    assert response.headers["content-type"] == "application/jsonlines"
    assert [json.loads(line) for line in response.text.splitlines()] == [
        {"word": "Hello,", "so_far": "Hello,"},
        {"word": "Ada!", "so_far": "Hello, Ada!"},
    ]
    response = post(server, "async_utils", json={})
    assert (response.status_code, response.json()["error"]) == (400, "there is no name")


def test_formatters_with_request_objects(server: RunningServer) -> None:
    response = post(server, "formatter_request_output", json={"question": "What is deep learning?", "label": "mine"})
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["token_text"] for line in lines] == [" Deep", " learning", " is"]
    assert lines[-1]["finish_reason"] == "length"
    assert lines[-1]["label"] == "mine"  # a field of the user's own class


def test_formatters_with_dicts(server: RunningServer) -> None:
    asked = {"inputPrompt": "What is deep learning?"}
    assert answer(server, "formatter_dict", asked) == {"generated_text": " Deep learning is", "reviewed": True}
    lines = post(server, "formatter_dict", json={**asked, "stream": True}).text.splitlines()
    chunks = [json.loads(line) for line in lines]
    assert [chunk["token"]["text"] for chunk in chunks] == [" Deep", " learning", " is"]
    assert all(chunk["reviewed"] for chunk in chunks)
    assert chunks[-1]["generated_text"] == " Deep learning is"
    chat = {"messages": [{"role": "user", "content": "What is deep learning?"}], "max_tokens": 3}
    url = f"{server.url}/v1/chat/completions"
    completion = httpx.post(url, json={"model": "formatter_dict", **chat}, timeout=60).json()
    assert completion["reviewed"] is True
    assert completion["choices"][0]["message"]["content"]
    events = httpx.post(url, json={"model": "formatter_dict", "stream": True, **chat}, timeout=60).text.split("\n\n")
    assert events[-2] == "data: [DONE]"
    assert all(json.loads(event.removeprefix("data: "))["reviewed"] for event in events[:-2])


def test_an_error_in_a_formatter_is_its_requests_own_and_names_the_line(server: RunningServer) -> None:
    bad = {"inputs": "please fail", "parameters": {"max_new_tokens": 3, "details": True}}
    good = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 2, "details": True}}
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda body: post(server, "formatter_legacy", json=body), [good, bad, good, good]))
    assert [response.status_code for response in answers] == [200, 424, 200, 200]
    assert answers[0].json() == [" Deep", " learning", "length"]
    assert "ValueError: refused by the formatter" in answers[1].json()["error"]
    assert place("formatter_legacy", "raise ValueError") in server.output()
    response = post(server, "formatter_request_output", json={"no": "question"})
    assert (response.status_code, "KeyError: 'question'" in response.text) == (424, True)
    assert place("formatter_request_output", 'body["question"]') in server.output()


def place(name: str, text: str) -> str:
    """How a traceback names the line of an example that has this text."""
    source = EXAMPLES / name / "model.py"
    (line,) = (number for number, line_text in enumerate(source.read_text().splitlines(), 1) if text in line_text)
    return f'File "{source}", line {line}'


def test_functions_of_sagemakers_script_mode(server: RunningServer) -> None:
    rows = {"features": [[1, 2], [3, 5]]}
    assert answer(server, "script_mode", rows) == {"scaled": [7.5, 20.0]}
    response = post(server, "script_mode", json=rows, headers={"accept": "text/csv"})
    assert (response.text, response.headers["content-type"]) == ("7.5\n20.0", "text/csv")
    response = post(server, "script_mode", content="1,2", headers={"content-type": "text/csv"})
    assert response.status_code == 424
    assert "Unsupported content type: text/csv" in response.text


def test_arrays_in_both_formats(server: RunningServer) -> None:
    arrays: list[Any] = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([2], np.int64)]
    for kind, encode, decode in (("npz", to_npz, from_npz), ("ndlist", to_nd_list, from_nd_list)):
        response = post(server, "arrays", content=encode(arrays), headers={"content-type": f"tensor/{kind}"})
        assert response.headers["content-type"] == f"tensor/{kind}"
        for array, sent in zip(decode(response.content), arrays, strict=True):
            np.testing.assert_array_equal(array, sent**2)
            assert array.dtype == sent.dtype


def test_an_image_alone_and_in_a_form(server: RunningServer) -> None:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 2), (10, 20, 30)).save(out, "PNG")
    expected = {"size": [4, 2], "color": [10, 20, 30], "name": None}
    response = post(server, "image", content=out.getvalue(), headers={"content-type": "image/png"})
    assert response.json() == expected
    response = post(server, "image", files={"data": ("a.png", out.getvalue())}, data={"name": "a"})
    assert response.json() == {**expected, "name": "a"}


def test_a_table_comes_and_goes_in_the_clients_form(server: RunningServer) -> None:
    csv = {"content": "inputs\nab\nc\n", "headers": {"content-type": "text/csv", "accept": "text/csv"}}
    response = post(server, "table", **csv)
    assert response.headers["content-type"] == "text/csv"
    assert response.text.split() == ["text,length", "ab,2", "c,1"]
    response = post(server, "table", json={"inputs": ["abc"]}, headers={"accept": "application/json"})
    assert response.json() == [{"text": "abc", "length": 3}]


def test_fields_of_forms_and_of_the_url(server: RunningServer) -> None:
    expected = "Hello, Ada! ['greeting', 'name']"
    assert post(server, "form", data={"name": "Ada"}, params={"greeting": "Hello"}).text == expected
    parts = {"name": (None, "Ada"), "greeting": (None, "Hello")}
    assert post(server, "form", files=parts).text == expected


def test_an_async_handle_answers_many_at_a_time(server: RunningServer) -> None:
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: answer(server, "asynchronous", {}), range(8)))
    assert max(one["together"] for one in answers) > 4


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What importing an example here leaves behind is taken away again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(EXAMPLES)):
            del sys.modules[name]


def test_adapter_functions_are_called_by_their_names(imports: None) -> None:
    handler = TestHandler("model.py", EXAMPLES / "adapters")

    def call(function: str, **properties: str) -> Output:
        inputs = Input()
        inputs.function_name, inputs.properties = function, dict(properties)
        inputs.content.add("data", b'{"adapter": "french", "inputs": "x"}')
        made: Output = handler.inference(inputs)
        return made

    assert call("register_adapter", name="french", src="adapters/french").message == "Adapter french registered"
    assert json.loads(call("handle").content.value_at(0)) == {"adapter": "adapters/french", "inputs": "x"}
    call("update_adapter", name="french", src="adapters/new")
    assert json.loads(call("handle").content.value_at(0))["adapter"] == "adapters/new"
    call("unregister_adapter", name="french")
    assert json.loads(call("handle").content.value_at(0))["adapter"] is None


def test_sessions_keep_a_clients_state(server: RunningServer) -> None:
    created = [post(server, "sessions", json={"requestType": "NEW_SESSION"}) for _ in range(2)]
    one, two = ({"X-Amzn-SageMaker-Session-Id": each.headers["x-amzn-sagemaker-session-id"]} for each in created)
    assert answer(server, "sessions", {"add": [1, 2]}, one) == {"sum": [1.0, 2.0]}
    assert answer(server, "sessions", {"add": [5, 5]}, two) == {"sum": [5.0, 5.0]}
    assert answer(server, "sessions", {"add": [1, 1]}, one) == {"sum": [2.0, 3.0]}
    assert answer(server, "sessions", {"requestType": "CLOSE"}, one) == {"result": "closed"}
    assert post(server, "sessions", json={"add": [1, 1]}, headers=one).status_code == 404
    trick = {"X-Amzn-SageMaker-Session-Id": f"../{two['X-Amzn-SageMaker-Session-Id']}"}
    assert post(server, "sessions", json={"requestType": "CLOSE"}, headers=trick).status_code == 400
    assert answer(server, "sessions", {"add": [0, 0]}, two) == {"sum": [5.0, 5.0]}


def test_a_rolling_batch_of_ones_own(server: RunningServer) -> None:
    body = {"inputs": "abc", "parameters": {"details": True}}
    spelled = answer(server, "rolling_batch", body)
    assert spelled["generated_text"] == "abc"
    assert spelled["details"]["finish_reason"] == "eos_token"
    response = post(server, "rolling_batch", json={"inputs": "ab", "stream": True})
    assert response.headers["content-type"] == "application/jsonlines"
    assert [json.loads(line)["token"]["text"] for line in response.text.splitlines()] == ["a", "b"]
    failed = answer(server, "rolling_batch", {"inputs": "a!"})
    assert failed["details"] == {"finish_reason": "error"}
    assert answer(server, "rolling_batch", {"inputs": "ok"}) == {"generated_text": "ok"}


def test_an_output_formatter_sees_all_documented_fields(server: RunningServer) -> None:
    parameters = {"max_new_tokens": 3, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
    body = {"inputs": "What is deep learning?", "parameters": parameters}
    fields, again = answer(server, "formatter_fields", body), answer(server, "formatter_fields", body)
    assert len({*fields.pop("request_ids")}) == len({*again.pop("request_ids")}) == 1
    assert fields == again
    assert fields["input_text"] == body["inputs"]
    assert fields["input_ids"] == fields["tokenized"]
    assert fields["parameters"] == fields["server_parameters"] == parameters
    assert (fields["adapters"], fields["is_callable"], fields["sequences"]) == (None, True, [1, []])
    assert fields["texts"] == [" Deep", " learning", " is"]
    token_id, log_prob, special, as_dict = fields["last"]
    assert as_dict == {"id": token_id, "text": " is", "log_prob": log_prob}
    assert special is None
    assert [top[0] for top in fields["top_tokens"]] == fields["texts"]
    assert "".join(fields["prompt_tokens"]).endswith(str(body["inputs"]))
    assert fields["cumulative_log_prob"] <= log_prob < 0
    assert fields["finish_reason"] == "length"


def test_requests_have_numbers_of_their_own(server: RunningServer) -> None:
    body = {"inputs": "Hello", "parameters": {"max_new_tokens": 1}}
    numbers = [answer(server, "formatter_fields", body)["request_ids"][0] for _ in range(3)]
    assert numbers == sorted({*numbers})

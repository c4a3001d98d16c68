"""DJL's contract of a handler, content type by content type and name by name, over a real server.

What one name does with all its values is tested beside its module; here is what a client sees of it.
"""

from __future__ import annotations

import functools
import http.server
import io
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from djl_python.np_util import from_nd_list, from_npz, to_nd_list, to_npz
from djl_python.testing import RunningServer, running_server

#: Models by name: the settings of each, and its model.py.
MODELS: dict[str, tuple[str, str]] = {
    "names": (
        "",
        """
from djl_python import Input, Output

def handle(inputs: Input) -> Output | None:
    if inputs.is_empty():
        assert inputs.get_property("own") == "1" and inputs.get_function_name() == "handle"
        return None
    content = inputs.get_content()
    return Output().add_as_json({
        "keys": content.get_keys(), "size": content.size(), "own": inputs.get_properties()["own"],
        "header": inputs.get_property("X-Own"), "function": inputs.get_function_name(),
        "contains": [inputs.contains_key("data"), inputs.contains_key("no")],
        "batch": [inputs.is_batch(), inputs.get_batch_size(), len(inputs.get_batches())],
        "texts": {key: inputs.get_as_string(key) for key in content.get_keys()},
    })
""",
    ),
    "decoded": (
        "",
        """
from djl_python import Input, Output
from djl_python.encode_decode import decode, encode

def handle(inputs: Input) -> Output | None:
    if inputs.is_empty():
        return None
    found = decode(inputs, inputs.get_property("content-type"))
    outputs = Output()
    if "accept" in inputs.get_properties() and inputs.get_property("accept") != "*/*":
        encode(outputs, found["inputs"], inputs.get_property("accept"))
        return outputs
    value = found["inputs"] if isinstance(found, dict) and "inputs" in found else found
    if hasattr(value, "size") and hasattr(value, "mode"):
        value = {"image": list(value.size)}
    elif isinstance(value, bytes):
        value = {"bytes": len(value)}
    return outputs.add_as_json(value)
""",
    ),
    "endings": (
        "",
        """
import pathlib
from djl_python import Input, Output

def handle(inputs: Input):
    if inputs.is_empty():
        return None
    asked = inputs.get_as_json()
    match asked["do"]:
        case "nothing":
            return None
        case "other":
            return {"not": "an Output"}
        case "raise":
            raise ValueError("no such thing")
        case "error":
            return Output().error("told", code=418, message="teapot")
        case "code":
            return Output(201, "made").add("made").add_property("X-Made", "yes")
        case "finalize":
            return Output().add("ok").finalize(pathlib.Path(asked["file"]).write_text, "done")
        case "missing":
            return Output().add(inputs.get_as_bytes("no"))
        case "stream":
            return Output().add_stream_content(iter(["a", {"b": 1}]))
        case "formatted":
            return Output().add_stream_content(iter("ab"), output_formatter=lambda item: f"<{item}>".encode())
        case "generator":
            return (Output().add(text) for text in ("one ", "two"))
        case "several":
            return Output().add("a", key="x").add("b", key="y")
""",
    ),
    "chosen": (
        "option.handler=answer",
        "from djl_python import Output\ndef answer(inputs):\n    return Output().add('x')\n",
    ),
    "module": ("option.entryPoint=service", ""),
    "renamed": ("option.entryPoint=other.py", ""),
    "asynchronous": (
        "",
        """
import asyncio
from djl_python import Output

waiting = asyncio.Event()
count = 0

async def handle(inputs):
    global count
    if inputs.is_empty():
        return None
    count += 1
    if count == 4:
        waiting.set()
    await waiting.wait()
    async def pieces():
        yield {"together": count}
    return Output().add_stream_content(pieces())
""",
    ),
    "batches": (
        "batch_size=4\nmax_batch_delay=2000",
        """
from djl_python import Input, Output

def handle(inputs: Input) -> Output | None:
    if inputs.is_empty():
        return None
    outputs = Output()
    batches = inputs.get_batches()
    for index, item in enumerate(batches):
        asked = item.get_as_json()
        if asked == "drop" :
            continue
        if asked == "bad":
            outputs.error("bad item", code=400, batch_index=index)
        else:
            outputs.add_as_json({"item": asked, "of": len(batches), "type": item.get_property("content-type")},
                                batch_index=index)
    return outputs
""",
    ),
}
OTHER = "from djl_python import Output\ndef handle(inputs):\n    return Output().add(__name__)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    for name, (properties, source) in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "serving.properties").write_text(f"option.own=1\n{properties}\n")
        if source:
            (folder / name / "model.py").write_text(source)
    (folder / "module" / "service.py").write_text(OTHER)
    (folder / "renamed" / "other.py").write_text(OTHER)
    with running_server("-s", str(folder)) as running:
        yield running


def post(server: RunningServer, model: str, **sent: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/predictions/{model}", timeout=60, **sent)


def do(server: RunningServer, what: str, **more: Any) -> httpx.Response:
    return post(server, "endings", json={"do": what, **more})


def test_names_of_a_call(server: RunningServer) -> None:
    response = post(server, "names", content=b"text", params={"k": "v"}, headers={"x-own": "h", "own": "forged"})
    assert response.json() == {
        "keys": ["k", "data"],
        "size": 2,
        "own": "1",
        "header": "h",
        "function": "handle",
        "contains": [True, False],
        "batch": [False, 1, 1],
        "texts": {"k": "v", "data": "text"},
    }


@pytest.mark.parametrize(
    ("sent", "texts"),
    [
        ({"data": {"a": "1", "b": "ü"}}, {"a": "1", "b": "ü"}),
        ({"files": {"a": (None, "1"), "data": ("x.bin", b"bytes")}}, {"a": "1", "data": "bytes"}),
        ({"content": b""}, {"data": ""}),
    ],
)
def test_fields_of_forms_are_entries(server: RunningServer, sent: dict[str, Any], texts: dict[str, str]) -> None:
    assert post(server, "names", **sent).json()["texts"] == texts


def png() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 2)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        ("application/json", b'{"inputs": [1, 2]}', [1, 2]),
        ("application/json; charset=utf-8", b'{"other": 1}', {"other": 1}),
        ("text/csv", b"inputs\na\nb\n", ["a", "b"]),
        ("text/csv", b"question,context\nq,c\n", [{"question": "q", "context": "c"}]),
        ("text/plain", b"hello", ["hello"]),
        ("image/png", png(), {"image": [4, 2]}),
        ("audio/wav", b"RIFF", {"bytes": 4}),
        ("application/octet-stream", b"\x00\x01", {"bytes": 2}),
        ("application/jsonlines", b'{"a": 1}\n\n2\n', [{"a": 1}, 2]),
    ],
)
def test_content_types_are_decoded(server: RunningServer, kind: str, content: bytes, value: Any) -> None:
    response = post(server, "decoded", content=content, headers={"content-type": kind})
    assert (response.status_code, response.json()) == (200, value)


@pytest.mark.parametrize("kind", ["tensor/npz", "tensor/ndlist", "application/x-npy"])
@pytest.mark.parametrize("accept", ["tensor/npz", "tensor/ndlist"])
def test_arrays_come_and_go(server: RunningServer, kind: str, accept: str) -> None:
    arrays: list[Any] = [np.arange(6, dtype=np.float32).reshape(2, 3)]
    npy = io.BytesIO()
    np.save(npy, arrays[0])
    bodies = {"tensor/npz": to_npz(arrays), "tensor/ndlist": to_nd_list(arrays), "application/x-npy": npy.getvalue()}
    response = post(server, "decoded", content=bodies[kind], headers={"content-type": kind, "accept": accept})
    assert response.headers["content-type"] == accept
    (array,) = (from_npz if accept == "tensor/npz" else from_nd_list)(response.content)
    np.testing.assert_array_equal(array, arrays[0])


@pytest.mark.parametrize(
    ("kind", "content"),
    [("application/json", b"{"), ("text/csv", b"a,b\n1,2\n"), ("tensor/npz", b"x"), ("image/png", b"x")],
)
def test_a_body_that_does_not_match_its_content_type_is_the_clients_error(
    server: RunningServer, kind: str, content: bytes
) -> None:
    response = post(server, "decoded", content=content, headers={"content-type": kind})
    assert response.status_code == 424
    assert response.json()["error"]


def test_none_is_no_content(server: RunningServer) -> None:
    response = do(server, "nothing")
    assert (response.status_code, response.content) == (204, b"")


def test_errors(server: RunningServer) -> None:
    raised = do(server, "raise")
    assert raised.status_code == 424
    assert raised.json() == {
        "code": 424,
        "message": "invoke handler failure",
        "error": "ValueError: no such thing",
    }
    told = do(server, "error")
    assert (told.status_code, told.json()) == (418, {"code": 418, "message": "teapot", "error": "told"})
    other = do(server, "other")
    assert other.status_code == 424
    assert other.json()["error"] == (
        "Invalid output type: dict, expected an Output or None: return Output().add_as_json(...)"
    )
    missing = do(server, "missing")
    assert missing.status_code == 424
    assert "requested data for key: no is not found!" in missing.json()["error"]


def test_codes_properties_and_entries(server: RunningServer) -> None:
    response = do(server, "code")
    assert (response.status_code, response.text, response.headers["x-made"]) == (201, "made", "yes")
    assert do(server, "several").text == "ab"


def test_a_finalizer_runs_when_the_answer_is_sent(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "done"
    assert do(server, "finalize", file=str(file)).text == "ok"
    assert do(server, "nothing").status_code == 204  # one call after the other: the first one has ended
    assert file.read_text() == "done"


def test_streams(server: RunningServer) -> None:
    lines = do(server, "stream")
    assert lines.text == '{"outputs":"a"}\n{"outputs":{"b":1}}\n'
    assert lines.headers["content-type"] == "application/jsonlines"
    assert do(server, "formatted").text == "<a><b>"
    assert do(server, "generator").text == "one two"


@pytest.mark.parametrize(("model", "text"), [("chosen", "x"), ("module", "service"), ("renamed", "other")])
def test_where_the_function_is(server: RunningServer, model: str, text: str) -> None:
    assert post(server, model, content=b"").text == text


def test_an_async_function_answers_several_at_once(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda _: post(server, "asynchronous", content=b"x").json(), range(4)))
    assert answers == [{"outputs": {"together": 4}}] * 4


def test_items_of_a_batch(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda item: post(server, "batches", json=item), [1, "bad", [2], 3]))
    good = [answer.json() for answer in answers if answer.status_code == 200]
    assert good == [{"item": item, "of": 4, "type": "application/json"} for item in (1, [2], 3)]
    assert (answers[1].status_code, answers[1].json()["error"]) == (400, "bad item")


def test_a_batch_that_lacks_an_answer_says_which(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda item: post(server, "batches", json=item), ["drop", 1, 2, 3]))
    assert answers[0].status_code == 424
    assert re.search(r"Batch output size mismatch, expected: 4, actual: 3: no entry for item \d", answers[0].text)
    assert [answer.json()["item"] for answer in answers[1:]] == [1, 2, 3]


def test_a_handler_behind_a_url(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "handler.py").write_text(OTHER)
    served = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "files"))
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), served)
    thread = threading.Thread(target=files.serve_forever)
    thread.start()
    try:
        (tmp_path / "m").mkdir()
        url = f"http://127.0.0.1:{files.server_port}/handler.py"
        (tmp_path / "m" / "serving.properties").write_text(f"option.entryPoint={url}\n")
        with running_server(str(tmp_path / "m"), environment={"DJL_CACHE_DIR": str(tmp_path / "cache")}) as server:
            assert httpx.post(f"{server.url}/invocations", timeout=30).text == "model"
    finally:
        files.shutdown()
        thread.join()
        files.server_close()

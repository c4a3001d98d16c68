"""The user's @input_formatter reads requests; its @output_formatter sees what it made."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from djl_python.core.errors import HandlerError, ParameterError
from djl_python.inputs import Input
from djl_python.text.chat import ChatTemplates
from tests.handlers.conftest import Watch
from tests.handlers.harness import FakeReply, Served, ids

HEAD = """
from djl_python import Input
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter
from djl_python.request_io import TextInput
"""


async def load(model_dir: Path, source: str, **options: object) -> Served:
    (model_dir / "model.py").write_text(HEAD + source)
    return await Served(model_dir).load(**options)  # type: ignore[arg-type]


async def test_a_text_input_becomes_the_request(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
@input_formatter
def read(input_item: Input, tokenizer=None, configs=None, **kwargs) -> TextInput:
    body = input_item.get_as_json()["inputs"]
    length = len(tokenizer.encode(body["q"]))
    return TextInput(input_text=body["q"] + configs.dtype, parameters={"max_new_tokens": length})
""",
    )
    answer = json.loads((await served.answer({"q": "abc"})).body)
    assert answer["generated_text"] == " AB"
    assert served.engine.prompts[1] == ids("abcauto")
    assert served.engine.sampling[1].max_new_tokens == 3


async def test_a_chat_that_the_formatter_makes_long_is_rendered_off_the_loop(model_dir: Path, watch: Watch) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages | length }}")
    served = await load(
        model_dir,
        """
@input_formatter
def read(input_item, **kwargs):
    return {"messages": [{"role": "user", "content": "x" * 30_000}]}
""",
    )
    rendered = watch(ChatTemplates, "render")
    assert (await served.answer("short")).status == 200
    assert rendered == [True]


async def test_ids_and_a_stream_and_a_formatter_of_its_own(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
class Mine(TextInput):
    mark = "?"

def write(request_output):
    token, first, last = request_output.sequences[0].get_next_token()
    return (request_output.input.mark if first else "") + token.text

@input_formatter
def read(input_item, tokenizer=None):
    made = Mine(input_ids=tokenizer.encode("xy"), parameters={"stream": True}, output_formatter=write)
    made.mark = "!"
    return made
""",
    )
    reply = await served.answer("not used")
    assert served.engine.prompts[1] == ids("xy")
    assert reply.body == b"! XY"
    assert len(reply.pieces) > 1


async def test_the_tokenizer_is_transformers_own(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    served = await load(
        model_dir,
        """
@input_formatter
def read(input_item, **kwargs):
    tokenizer = kwargs["tokenizer"]
    text = tokenizer.apply_chat_template(input_item.get_as_json()["inputs"], tokenize=False)
    return TextInput(input_ids=tokenizer(text)["input_ids"], parameters={"max_new_tokens": min(3, len(tokenizer))})
""",
    )
    assert json.loads((await served.answer([{"role": "user", "content": "hi"}])).body)["generated_text"] == " <H"
    assert served.engine.prompts[1] == ids("<hi>")


@pytest.mark.parametrize(
    ("use", "loads"), [("len(kwargs['tokenizer'])", 1), ("3", 0)], ids=["module-names-it", "module-does-not"]
)
async def test_no_request_waits_for_the_tokenizer(
    model_dir: Path, caplog: pytest.LogCaptureFixture, use: str, loads: int
) -> None:
    caplog.set_level("INFO")
    source = f"""
@input_formatter
def read(input_item, **kwargs):
    {use}
    return TextInput(input_text="x", parameters={{"max_new_tokens": 3}})
"""
    served = await load(model_dir, source)
    assert caplog.text.count("transformers loads the tokenizer") == loads
    assert (await served.answer("x")).status == 200
    assert caplog.text.count("transformers loads the tokenizer") == loads


async def test_a_payload_is_the_dialects_to_read(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
@input_formatter
def read(decoded_payload: dict) -> dict:
    return {"inputs": decoded_payload["inputs"]["text"], "parameters": {"temperature": "hot"}}
""",
    )
    with pytest.raises(ParameterError, match=r"parameters\.temperature"):
        await served.answer({"text": "x"})


async def test_an_adapter_that_it_asks_for_is_refused(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
@input_formatter
def read(input_item):
    asked = input_item.get_as_json()["inputs"]
    return TextInput(input_text="x", parameters={"max_new_tokens": 3}, adapters=asked)
""",
    )
    assert (await served.answer([""])).status == 200
    with pytest.raises(ParameterError, match="adapters: this model has no adapters"):
        await served.answer(["french"])
    reply = await served.ended(*served.call("tgi", "generate", {"inputs": "french"}))
    assert reply.headers["x-ignored-parameters"] == "adapters"


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return 5", HandlerError, "returned int"),
        ("raise KeyError('mine')", KeyError, "mine"),
        ("next(iter(()))", RuntimeError, "StopIteration"),
        ("raise KeyboardInterrupt", HandlerError, "KeyboardInterrupt"),
    ],
)
async def test_an_error_in_an_input_formatter_fails_the_request(
    model_dir: Path, body: str, error: type[Exception], message: str
) -> None:
    served = await load(model_dir, f"@input_formatter\ndef read(input_item):\n    {body}\n")
    with pytest.raises(error, match=message):
        await served.answer("x")
    assert not served.engine.prompts


async def test_the_file_that_the_entry_point_names(model_dir: Path) -> None:
    (model_dir / "serve.py").write_text(HEAD + "@output_formatter\ndef write(request_output): return '.'\n")
    served = await Served(model_dir).load(entry_point="serve.py")
    assert (await served.answer("x")).body == b"..."
    await served.handler.close()


@pytest.mark.parametrize("model_file", ["", "raise SystemExit"])
async def test_the_module_that_the_entry_point_names(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, model_file: str
) -> None:
    package = model_dir / "elsewhere" / model_dir.name  # a name that no other test's module has
    package.mkdir(parents=True)
    (package / "fmt.py").write_text(HEAD + "@output_formatter\ndef write(request_output): return '.'\n")
    monkeypatch.syspath_prepend(package.parent)
    if model_file:
        (model_dir / "model.py").write_text(model_file)  # not asked for
    served = await Served(model_dir).load(entry_point=f"{package.name}.fmt")
    assert (await served.answer("x")).body == b"..."
    await served.handler.close()


async def test_a_named_module_without_formatters_leaves_them_to_the_file(model_dir: Path) -> None:
    (model_dir / "model.py").write_text(HEAD + "@output_formatter\ndef write(request_output): return '.'\n")
    name = "djl_python.handlers.text_generation"
    served = await Served(model_dir).load(entry_point=f"{name}:TextGenerationHandler")
    assert (await served.answer("x")).body == b"..."
    await served.handler.close()


async def test_a_call_whose_formatter_does_not_return_holds_the_worker(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
import threading
go = threading.Event()

@input_formatter
def read(input_item):
    go.wait()
    return TextInput(input_text="x")
""",
    )
    (module,) = [one for one in sys.modules.values() if getattr(one, "__file__", "") == str(model_dir / "model.py")]
    inputs = Input()
    inputs.dialect, inputs.operation = "lmi", "predict"
    call = asyncio.create_task(served.handler.serve(inputs, FakeReply()))
    async with asyncio.timeout(10):
        while not served.thread.busy:
            await asyncio.sleep(0)
    call.cancel()
    assert not await served.thread.released(inputs, 0)
    module.go.set()
    assert await served.thread.released(inputs, 10)


SAME = """
@input_formatter
def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    return decoded_payload
"""
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("dialect", "operation", "content_type", "body"),
    [
        ("lmi", "predict", "application/json", b'{"inputs": "x"}'),
        ("lmi", "predict", "text/plain", b"x"),
        ("lmi", "predict", FORM, b"inputs=x"),
        ("triton", "generate", "application/json", b'{"text_input": "x"}'),
        ("triton", "generate", FORM, b'{"text_input": "x"}'),
        ("triton", "generate_stream", "", b'{"text_input": "x"}'),
        (
            *("triton", "infer", ""),
            b'{"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}',
        ),
    ],
)
async def test_a_payload_that_is_given_back_changes_nothing(
    model_dir: Path, dialect: str, operation: str, content_type: str, body: bytes
) -> None:
    served = await load(model_dir, SAME)
    reply = await served.ended(*served.call(dialect, operation, body, content_type))
    assert reply.status == 200
    assert served.engine.prompts[1] == ids("x")


async def test_binary_tensors_stay_behind_the_payload(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
@input_formatter
def read(payload: dict) -> dict:
    return payload | {"parameters": {"max_tokens": 2}}
""",
    )
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + b"\2\0\0\0hi"
    length: dict[str, Any] = {"inference-header-content-length": str(len(head))}
    reply = await served.ended(*served.call("triton", "infer", body, "application/octet-stream", **length))
    assert reply.status == 200
    assert (served.engine.prompts[1], served.engine.sampling[1].max_new_tokens) == (ids("hi"), 2)


async def test_an_output_formatter_sees_the_prompts_length_and_what_ended_the_text(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
@output_formatter
def write(request_output):
    sequence = request_output.sequences[0]
    token, first, last = sequence.get_next_token()
    return f"{request_output.input.prompt_tokens_length()} {sequence.stop_reason}" if last else ""
""",
    )
    assert (await served.answer("xyzz", stop_sequences=["?", "YZ"])).body == b"4 YZ"
    assert (await served.answer("xy", max_new_tokens=2)).body == b"2 None"


async def test_an_output_formatter_is_called_for_the_best_sequence(model_dir: Path) -> None:
    served = await load(
        model_dir,
        """
@output_formatter
def write(request_output):
    best = request_output.sequences[request_output.best_sequence_index]
    token, first, last = best.get_next_token()
    return f"{token.id} {len(request_output.other_sequences_indices)}\\n" if last else ""
""",
    )
    reply = await served.answer("x", details=True, n=2, do_sample=True)
    assert [line.split()[1] for line in reply.body.decode().splitlines()] == ["1"]
    body = {"prompt": ["x", "y"], "max_tokens": 3}
    reply = await served.ended(*served.call("openai", "completion", body))
    assert [line.split()[1] for line in reply.body.decode().splitlines()] == ["0", "0"]

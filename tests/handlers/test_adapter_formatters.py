"""An adapter's own model.py: its formatters are those of requests that name the adapter, and of no others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from djl_python.config.adapters import ADAPTER_FILE
from djl_python.core.errors import HandlerError, ParameterError
from djl_python.dialects.ollama.dialect import GENERATE
from djl_python.handlers.user_formatters import UserFormatters
from djl_python.ipc.protocol import AdapterChange
from tests.handlers.harness import FakeReply, Served

HEAD = """
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter
from djl_python.request_io import TextInput
"""
#: Reads a body of its own form, and writes whole responses.
OWN = """
@input_formatter
def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    return {"inputs": "%s" + decoded_payload["question"], "parameters": {"max_new_tokens": 4}}

@output_formatter
def write(response_data: dict) -> dict:
    return {"%s": response_data["generated_text"]}
"""


def written(path: Path, code: str | None) -> str:
    """The directory of an adapter with this model.py."""
    path.mkdir(parents=True, exist_ok=True)
    (path / ADAPTER_FILE).write_text('{"r": 8}')
    if code is not None:
        (path / "model.py").write_text(HEAD + code)
    return str(path)


@pytest.fixture
def adapters(model_dir: Path) -> dict[str, str]:
    """A model's adapters: two with code, and one without."""
    folder = model_dir / "adapters"
    return {
        "first": written(folder / "first", OWN % ("1", "one")),
        "second": written(folder / "second", OWN % ("2", "two")),
        "plain": written(folder / "plain", None),
    }


async def load(model_dir: Path, adapters: dict[str, str], code: str = "") -> Served:
    if code:
        (model_dir / "model.py").write_text(HEAD + code)
    return await Served(model_dir).load(adapters=adapters, enable_lora=True)


async def asked(served: Served, body: Any, dialect: str = "lmi", operation: str = "predict", **headers: Any) -> Any:
    reply = await served.ended(*served.call(dialect, operation, body, **headers))
    assert reply.status == 200
    return json.loads(reply.body)


async def change(served: Served, operation: Any, name: str, source: str = "") -> None:
    await served.handler.change_adapter(AdapterChange(1, operation, name, source))


async def test_each_adapter_has_its_own_and_others_the_models(model_dir: Path, adapters: dict[str, str]) -> None:
    """Where the model has formatters too, an adapter without some has the model's."""
    served = await load(model_dir, adapters, OWN % ("0", "model"))
    question = {"question": "a"}
    assert await asked(served, question | {"adapters": "first"}) == {"one": " 1A"}
    assert await asked(served, question | {"adapter": "second"}) == {"two": " 2A"}
    assert await asked(served, question | {"adapters": "plain"}) == {"model": " 0A"}
    assert await asked(served, question) == {"model": " 0A"}
    assert served.engine.adapters == ["first", "second", "plain", ""]
    only_output = written(model_dir / "third", "@output_formatter\ndef w(response: dict) -> dict:\n    return {}\n")
    await change(served, "register", "third", only_output)
    assert await asked(served, question | {"adapters": "third"}) == {}


async def test_every_api_and_way_to_name_one(model_dir: Path, adapters: dict[str, str]) -> None:
    served = await load(model_dir, {"first": adapters["first"], "plain": adapters["plain"]})
    header = {"x-amzn-sagemaker-adapter-identifier": "first"}
    assert await asked(served, {"question": "a"}, **header) == {"one": " 1A"}
    few = {"adapter_id": "plain", "max_new_tokens": 3}
    assert await asked(served, {"inputs": "b", "parameters": few}, "tgi", "generate") == {"generated_text": " B"}
    read = (
        "@input_formatter\ndef read(payload: dict) -> dict:\n"
        "    return {**payload, **{name: 'q' for name in ('prompt', 'inputs') if name in payload}}\n"
    )
    await change(served, "register", "q", written(model_dir / "q", read))
    for dialect, operation, body in (
        ("openai", "completion", {"model": "q", "prompt": "b", "max_tokens": 3}),
        ("tgi", "generate", {"inputs": "b", "parameters": few | {"adapter_id": "q"}}),
        ("ollama", GENERATE, {"model": "q:latest", "prompt": "b", "raw": True, "stream": False}),
        ("lmi", "predict", {"inputs": "b", "adapters": ["q"]}),
    ):
        assert " Q" in json.dumps(await asked(served, body, dialect, operation)), dialect
    assert served.engine.adapters[-4:] == ["q"] * 4


async def test_a_request_keeps_the_adapter_that_it_names(model_dir: Path, adapters: dict[str, str]) -> None:
    """Also where the model's formatter makes a request of its own, which does not say so."""
    code = "@input_formatter\ndef read(input_item):\n    return TextInput(input_text='x')\n"
    served = await load(model_dir, {"plain": adapters["plain"]}, code)
    await asked(served, {"adapters": "plain", "inputs": "y"})
    assert served.engine.adapters == ["plain"]
    with pytest.raises(ParameterError, match="there is no adapter gone"):
        await served.ended(*served.call("lmi", "predict", {"adapters": "gone", "inputs": "y"}))


async def test_prompts_of_one_request_have_one_form(model_dir: Path, adapters: dict[str, str]) -> None:
    served = await load(model_dir, adapters)
    for others in ("second", "plain", ""):
        body = {"inputs": ["a", "b"], "adapters": ["first", others]}
        with pytest.raises(ParameterError, match=r"adapters: first has formatters of its own \(model\.py\)"):
            await served.ended(*served.call("lmi", "predict", body))
    assert len(await asked(served, {"inputs": ["a", "b"], "adapters": ["plain", ""]})) == 2
    assert not served.engine.adapters[2:]


async def test_files_beside_it_are_its_own(model_dir: Path) -> None:
    """Two adapters, and the model, have a helper of one name."""
    code = "import words\n@output_formatter\ndef write(response: dict) -> dict:\n    return {'said': words.WORD}\n"
    directories = {}
    for name in ("first", "second"):
        directories[name] = written(model_dir / "adapters" / name, code)
        (Path(directories[name]) / "words.py").write_text(f"WORD = {name!r}\n")
    (model_dir / "words.py").write_text("WORD = 'model'\n")
    served = await load(model_dir, directories, code)
    for adapter, said in {"first": "first", "second": "second", "": "model"}.items():
        assert await asked(served, {"inputs": "a", "adapters": adapter}) == {"said": said}
    assert sorted(path.name for path in Path(directories["first"]).iterdir()) == [ADAPTER_FILE, "model.py", "words.py"]


async def test_code_comes_changes_and_goes_with_its_adapter(model_dir: Path, adapters: dict[str, str]) -> None:
    served = await load(model_dir, {"plain": adapters["plain"]}, OWN % ("0", "model"))
    question = {"question": "a", "adapters": "new"}
    source = written(model_dir / "new", OWN % ("1", "one"))
    await change(served, "register", "new", source)
    assert await asked(served, question) == {"one": " 1A"}
    written(model_dir / "new", OWN % ("2", "two"))  # in the same second, and as long
    await change(served, "update", "new", source)
    assert await asked(served, question) == {"two": " 2A"}
    (model_dir / "new" / "model.py").unlink()
    await change(served, "update", "new", source)
    assert await asked(served, question) == {"model": " 0A"}
    written(model_dir / "new", OWN % ("3", "three"))
    await change(served, "update", "new", source)
    await change(served, "unregister", "new")
    (model_dir / "new" / "model.py").unlink()
    await change(served, "register", "new", source)
    assert await asked(served, question) == {"model": " 0A"}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", r"sys\.exit\(3\)"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("@output_formatter\ndef f(a, b): ...", "expected one parameter"),
        ("@output_formatter\ndef f(a): ...\n@output_formatter\ndef g(a): ...", "several functions"),
    ],
)
async def test_a_faulty_file_is_the_registrations_error_alone(
    model_dir: Path, adapters: dict[str, str], code: str, told: str
) -> None:
    served = await load(model_dir, adapters)
    bad = written(model_dir / "bad", code)
    for operation, name in (("register", "bad"), ("update", "first")):
        with pytest.raises(HandlerError, match=rf"^adapter {name}: {bad}/model\.py: .*{told}"):
            await change(served, operation, name, bad)
    assert not served.engine.changes
    assert await asked(served, {"question": "a", "adapters": "first"}) == {"one": " 1A"}
    with pytest.raises(HandlerError, match=rf"^adapter bad: {bad}/model\.py: .*{told}"):
        await load(model_dir, adapters | {"bad": bad})


async def test_an_adapter_that_the_engine_refuses_keeps_what_there_was(
    model_dir: Path, adapters: dict[str, str]
) -> None:
    served = await load(model_dir, adapters)
    served.engine.refusal = ParameterError("rank 64")
    for operation in ("update", "register"):
        with pytest.raises(ParameterError, match="rank 64"):
            await change(served, operation, "first", adapters["second"])
    assert await asked(served, {"question": "a", "adapters": "first"}) == {"one": " 1A"}


async def test_a_file_without_formatters_is_told(
    model_dir: Path, adapters: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    served = await load(model_dir, {"plain": adapters["plain"]})
    await change(served, "register", "none", written(model_dir / "none", "def handle(inputs): ..."))
    assert "adapter none: " in caplog.text and "neither @input_formatter nor @output_formatter" in caplog.text
    assert await asked(served, {"inputs": "b", "adapters": "none"}) == {"generated_text": " B"}


async def test_secure_mode_refuses_it(model_dir: Path, adapters: dict[str, str]) -> None:
    served = await Served(model_dir).load({"plain": adapters["plain"]}, runs_adapter_code=False, enable_lora=True)
    with pytest.raises(ParameterError, match=r"adapter first: .*model\.py: secure mode runs no code of a user's"):
        await change(served, "register", "first", adapters["first"])
    assert not served.engine.changes


async def test_formatters_and_weights_are_replaced_at_once(model_dir: Path, adapters: dict[str, str]) -> None:
    """Requests have the old ones until the engine has the new adapter, and then the new ones."""
    served = await load(model_dir, adapters)
    served.engine.may_change.clear()
    changing = asyncio.create_task(change(served, "update", "first", adapters["second"]))
    await served.engine.changing.wait()
    before, old = served.call("lmi", "predict", {"question": "a", "adapters": "first"})
    await served.submitted()
    served.engine.may_change.set()
    await served.changed(1)
    after, new = served.call("lmi", "predict", {"question": "a", "adapters": "first"})
    await served.submitted(2)
    assert not changing.done()
    running = asyncio.create_task(served.engine.drive())
    await asyncio.gather(before, after, changing)
    running.cancel()
    assert [json.loads(one.body) for one in (old, new)] == [{"one": " 1A"}, {"two": " 2A"}]
    versions = [(change.operation, change.version) for change in served.engine.changes]
    assert versions == [
        ("update", served.engine.adapter_versions[1]),
        ("unregister", served.engine.adapter_versions[0]),
    ]


async def test_a_request_that_is_parsed_while_its_adapter_is_replaced_is_parsed_again(
    model_dir: Path, adapters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old formatters read it when the new ones come: its form and its weights are the new adapter's."""
    served = await load(model_dir, adapters)
    parse, parsing, parsed = UserFormatters.parse, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        made = await parse(*arguments)
        parsing.set()
        await parsed.wait()
        return made

    monkeypatch.setattr(UserFormatters, "parse", slow)
    task, reply = served.call("lmi", "predict", {"question": "a", "adapters": "first"})
    await parsing.wait()
    await change(served, "update", "first", adapters["second"])
    parsed.set()
    await served.ended(task, reply)
    assert json.loads(reply.body) == {"two": " 2A"}
    assert served.engine.adapter_versions == [served.engine.changes[0].version]


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "a", "parameters": {"num_beams": 3, "max_new_tokens": 4}},
        {"inputs": "a", "parameters": {"n": 3, "do_sample": True, "max_new_tokens": 4}},
        {"inputs": ["a", "b", "c"] * 9, "parameters": {"max_new_tokens": 4}},
    ],
)
async def test_all_sequences_of_a_request_have_one_version(
    model_dir: Path, adapters: dict[str, str], body: dict[str, Any]
) -> None:
    """Whether they come at its start, or once others have ended or branched."""
    served = await load(model_dir, {"plain": adapters["plain"]})
    served.engine.top_of = lambda token_id: tuple(
        (other, -float(other - token_id)) for other in range(token_id, token_id + 6)
    )
    task, reply = served.call("lmi", "predict", body | {"adapters": "plain"})
    await served.submitted()
    begun = len(served.engine.prompts)
    changing = asyncio.create_task(change(served, "update", "plain", adapters["plain"]))
    await served.changed(1)
    await served.ended(task, reply)
    await changing
    assert len(served.engine.prompts) > begun and reply.status == 200
    assert set(served.engine.adapter_versions) == {0}
    await asked(served, body | {"adapters": "plain"})
    assert set(served.engine.adapter_versions) == {0, served.engine.changes[0].version}


async def test_a_stream_goes_on_with_the_formatter_that_it_began_with(
    model_dir: Path, adapters: dict[str, str]
) -> None:
    code = "@output_formatter\ndef write(request_output):\n    return '%s'\n"
    served = await load(model_dir, {"a": written(model_dir / "a", code % "1")})
    task, reply = served.call("lmi", "predict", {"inputs": "xyz", "adapters": "a", "stream": True})
    await served.submitted()
    served.engine.step()
    changing = asyncio.create_task(change(served, "update", "a", written(model_dir / "a", code % "2")))
    await served.changed(1)
    await served.ended(task, reply)
    await changing
    assert set(reply.body) == {ord("1")}
    later: FakeReply = await served.ended(*served.call("lmi", "predict", {"inputs": "x", "adapters": "a"}))
    assert set(later.body) == {ord("2")}

"""What `djl-serving check` says of a handler, held against what a worker finds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from djl_python.commands import handler_check
from djl_python.config import ModelConfig, ServerConfig, parse_model_spec
from djl_python.core.errors import ConfigError, ModelLoadError, ServingError
from djl_python.handler import Handler
from djl_python.handlers.checks import check
from djl_python.sources import load_model_config
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.worker.entry_point import find_handler
from djl_python.worker.thread import HandlerThread
from tests.sketches import write_sketch

HANDLE = "def handle(inputs):\n    return None\n"
FORMATTER = """\
from djl_python.output_formatter import output_formatter

@output_formatter
def custom(request_output):
    return ""
"""


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports run in this process: what they change is put back."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("model", None)


def handler_of(config: ModelConfig) -> str:
    """The handler, of which there is no warning."""
    described, *warnings = handler_check.handler_of(config)
    assert warnings == []
    return described


def config_of(directory: Path, source: str | None, properties: str) -> ModelConfig:
    if source is not None:
        (directory / "model.py").write_text(source)
    (directory / "serving.properties").write_text(properties)
    return load_model_config(parse_model_spec(f"m={directory}"), ServerConfig(), {})


def test_a_file_that_may_not_be_read_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    config = config_of(tmp_path, HANDLE, "")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ModelLoadError, match=r"^/.*/model\.py: Permission denied$"):
        handler_of(config)


def test_a_file_that_python_warns_of_passes(tmp_path: Path) -> None:
    assert handler_of(config_of(tmp_path, HANDLE + 'PATTERN = "\\d"', "")).endswith("model.py, function handle")


@pytest.mark.parametrize(
    ("source", "properties", "words"),
    [
        (HANDLE, "", "model.py, function handle"),
        ("if True:\n    from os import listdir as handle", "", "model.py, function handle"),
        ("def make():\n    global handle\n    handle = print\nmake()", "", "model.py, function handle"),
        ("class Mine:\n    def handle(self, inputs): ...", "", "model.py, class Mine"),
        (
            "class A: ...\nclass Mine:\n    def handle(self, inputs): ...",
            "",
            "its handler is known only after its import",
        ),
        ("from json import *\nglobals()['handle'] = dumps", "", "its handler is known only after its import"),
        (
            "class B:\n    def handle(self, i): ...\nclass Mine(B): ...\ndel B",
            "",
            "its handler is known only after its import",
        ),
        ("def __getattr__(name):\n    return print", "", "its handler is known only after its import"),
        (HANDLE, "option.entryPoint=model.py:handle", r"model.py:handle \(option.entryPoint\)"),
        (HANDLE, "option.entryPoint=json:dumps", r"json:dumps \(option.entryPoint\)"),
        (HANDLE, "option.entryPoint=model", r"model.py \(option.entryPoint\), function handle"),
    ],
)
async def test_a_handler_that_can_be_served_is_described(
    tmp_path: Path, source: str, properties: str, words: str
) -> None:
    config = config_of(tmp_path, source, properties)
    assert re.search(f"{words}$", handler_of(config))
    assert isinstance(find_handler(config, HandlerThread()), Handler)


@pytest.mark.parametrize(
    ("source", "properties", "message"),
    [
        ("def other(inputs): ...", "", "model.py has no function 'handle' .* Its functions: other"),
        ("def other():\n    handle = 1", "", "model.py has no function 'handle'"),
        ("class A: ...", "", "model.py has no function 'handle'"),
        (HANDLE, "option.handler=answer", "model.py has no function 'answer' .* Its functions: handle"),
        (HANDLE, "option.entryPoint=model.py:nofn", "model.py has no 'nofn'"),
        (HANDLE, "option.entryPoint=gone.py", "gone.py does not exist"),
        (HANDLE, "option.entryPoint=nosuch", "option.entryPoint=nosuch: expected a .py file"),
        (HANDLE, "option.entryPoint=nosuch.part:fn", "'nosuch.part:fn': there is no module 'nosuch'"),
        (
            "from djl_python import Inputs\ndef handle(inputs): ...",
            "",
            "model.py:1: djl_python has no 'Inputs'; did you mean Input\\?",
        ),
        (
            "x = 1",
            "option.entryPoint=djl_python.huggingface\noption.task=fill-mask",
            "option.model_id is not set, and .* has no config.json",
        ),
        (
            "x = 1",
            "option.entryPoint=djl_python.huggingface\noption.task=fill-mask\noption.model_id=/",
            "/: there is no config.json: expected a checkpoint of transformers",
        ),
    ],
)
async def test_check_refuses_in_the_workers_words(tmp_path: Path, source: str, properties: str, message: str) -> None:
    config = config_of(tmp_path, source, properties)
    refusals = []
    for ask in (lambda: handler_of(config), lambda: find_handler(config, HandlerThread())):
        with pytest.raises((ModelLoadError, ConfigError), match=message) as caught:
            ask()
        refusals.append(caught.value.message)
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize(
    "source", ["def handle(inputs:\n", "return 1", "x = 1\0", "# -*- coding: utf-8 -*-\nx = '\udcff'"]
)
async def test_a_file_that_is_not_python_is_refused(tmp_path: Path, source: str) -> None:
    config = config_of(tmp_path, None, "option.entryPoint=mine.py")
    (tmp_path / "mine.py").write_bytes(source.encode(errors="surrogateescape"))
    with pytest.raises(ModelLoadError, match=re.escape(f"{tmp_path}/mine.py:")):
        handler_of(config)
    with pytest.raises((SyntaxError, ValueError)):
        find_handler(config, HandlerThread())


@pytest.mark.parametrize("preamble", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# \xe9\n"])
async def test_a_file_says_how_it_is_encoded(tmp_path: Path, preamble: bytes) -> None:
    config = config_of(tmp_path, None, "option.entryPoint=mine.py")
    (tmp_path / "mine.py").write_bytes(preamble + HANDLE.encode())
    assert handler_of(config).endswith("mine.py (option.entryPoint), function handle")
    assert isinstance(find_handler(config, HandlerThread()), Handler)


def test_another_python_may_have_another_syntax(tmp_path: Path) -> None:
    config = config_of(tmp_path, "type Handler = None\nmatch x:", "option.pythonExecutable=/opt/python")
    assert handler_of(config).endswith("model.py; its handler is known only after its import")


def test_requirements_may_bring_the_module(tmp_path: Path) -> None:
    config = config_of(tmp_path, None, "option.entryPoint=not_there_yet.handler")
    with pytest.raises(ModelLoadError, match="not_there_yet"):
        handler_of(config)
    (tmp_path / "requirements.txt").write_text("not-there-yet\n")
    assert handler_of(config) == "not_there_yet.handler, function handle (option.entryPoint)"
    ours = config_of(tmp_path, None, "option.entryPoint=djl_python.not_there")
    with pytest.raises(ModelLoadError, match=r"djl_python\.not_there"):
        handler_of(ours)


def test_no_code_of_the_users_runs(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"raise SystemExit\n{HANDLE}", "")
    assert handler_of(config).endswith("model.py, function handle")
    assert "model" not in sys.modules


@pytest.mark.parametrize("source", [FORMATTER, None])
async def test_the_built_in_handler(tmp_path: Path, source: str | None) -> None:
    write_sketch(tmp_path)
    config = config_of(tmp_path, source, "")
    formatters = "" if source is None else f", and the formatters of {tmp_path}/model.py"
    assert handler_of(config) == f"text-generation, built in, with the checkpoint {tmp_path}{formatters}"
    assert type(find_handler(config, HandlerThread())).__name__ == "TextGenerationHandler"


async def test_a_checkpoint_that_generates_no_text_is_refused_as_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["ViTForImageClassification"], "model_type": "vit"}')
    config = config_of(tmp_path, None, "option.rolling_batch=lmi-dist")
    refusals = []
    for ask in (handler_of, check):
        with pytest.raises(
            ModelLoadError, match=r"ViTForImageClassification \(config\.json\) is a model for image-classification"
        ) as caught:
            ask(config)
        refusals.append(caught.value.message)
    assert refusals[0] == refusals[1]
    t5 = '{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": true}'
    (tmp_path / "config.json").write_text(t5)
    told = f"text2text-generation, by djl_python.huggingface, with the checkpoint {tmp_path}"
    assert handler_of(config_of(tmp_path, None, "option.rolling_batch=disable")) == told
    (tmp_path / "model.py").write_text(HANDLE)
    assert handler_of(config_of(tmp_path, HANDLE, "")).endswith("function handle")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("option.model_id=/nonexistent/dir", "option.model_id=/nonexistent/dir: there is no directory"),
        ("option.model_id=djl://x/y", "DJL's model zoo is not here; expected a checkpoint, as in hf://y"),
        ("option.model_id={{model_id}}", "option.model_id={{model_id}}: neither a local directory nor a hub id"),
        ("option.model_id=<your model id>", "option.model_id=<your model id>: neither a local directory nor a hub id"),
        ("option.model_id=https://huggingface.co/a/b/tree/main", "a page of the hub; expected hf://a/b"),
        ("option.draft_model_id=./gone", "there is no directory"),
        ("option.output_formatter=xml", "option.output_formatter=xml: expected json"),
        (
            "option.pipeline_parallel_degree=2\noption.tensor_parallel_degree=2\noption.device=cpu",
            "option.pipeline_parallel_degree=2: devices share each layer too",
        ),
        ("option.chat_template=gone.jinja", "serving.properties:1: option.chat_template=gone.jinja: there is no file"),
        ("option.enable_reasoning=true\noption.chat_template={{ messages }}", "the chat template does not tell how"),
        ("option.tool_call_parser=nosuch", "option.tool_call_parser 'nosuch' is not known"),
        ("option.reasoning_parser=nosuch", "option.reasoning_parser 'nosuch' is not known; expected one of cohere"),
        ("option.enable_reasoning=true", "the chat template does not tell how reasoning is marked"),
        ("option.draft_model_id=a/b\noption.speculative=ngram", "expected one of them"),
        ("option.device=cuda", "option.device=cuda: there is no GPU here for cuda; expected cpu or auto"),
        ("option.output_formatter=jsonline", "serving.properties:1: .* did you mean jsonlines"),
        ("option.rolling_batch=ech", "serving.properties:1: option.rolling_batch 'ech' .* did you mean echo"),
        ("option.rolling_batch=nosuch:Engine", "option.rolling_batch=nosuch:Engine: there is no module 'nosuch'"),
        ("option.reasoning_parser=nosuch:P", "option.reasoning_parser=nosuch:P: there is no module 'nosuch'"),
        ("option.tool_call_parser=nosuch.x:P", "option.tool_call_parser=nosuch.x:P: there is no module 'nosuch.x'"),
    ],
)
def test_the_built_in_handlers_options_are_checked(tmp_path: Path, properties: str, message: str) -> None:
    write_sketch(tmp_path)
    with pytest.raises((ModelLoadError, ConfigError), match=message):
        handler_of(config_of(tmp_path, None, properties))
    (tmp_path / "model.py").write_text(HANDLE)
    assert handler_of(config_of(tmp_path, HANDLE, properties)).endswith("function handle")  # to it, they are its own


@pytest.mark.parametrize("properties", ["option.model_id=owner/name", "option.model_id=s3://bucket/prefix"])
def test_nothing_is_downloaded(tmp_path: Path, properties: str) -> None:
    try:
        assert "built in" in handler_of(config_of(tmp_path, None, properties))
    except ServingError as error:
        pytest.fail(error.message)


def test_a_handler_for_transformers_4_is_warned_of(tmp_path: Path) -> None:
    source = "from transformers import AutoTokenizer\ndef handle(inputs):\n    return AutoTokenizer.encode_plus(1)\n"
    _, *warnings = handler_check.handler_of(config_of(tmp_path, source, ""))
    assert warnings == ["model.py:3: transformers 5 has no method encode_plus: tokenizer(text) takes its place"]
    source = source.replace("encode_plus(1)", "x; model.greedy_search(1)")
    with pytest.raises(ModelLoadError, match=r"model.py:3: transformers 5 has no method greedy_search: use model\.gen"):
        handler_check.handler_of(config_of(tmp_path, source, ""))
    (tmp_path / "requirements.txt").write_text("transformers==4.57.0\n")  # which has it
    assert len(handler_check.handler_of(config_of(tmp_path, source, ""))) == 1


def test_all_faults_are_told_in_one_run(tmp_path: Path) -> None:
    """Each with its line, its value and what was expected."""
    write_sketch(tmp_path, {"model_type": "lama"})
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "tokenizer.json").write_text("{")
    source = "import nosuchmodule\n" + FORMATTER
    properties = "option.output_formatter=xml\noption.device=cuda\n"
    properties += "option.pipeline_parallel_degree=2\noption.tensor_parallel_degree=2"
    with pytest.raises(ModelLoadError) as caught:
        handler_of(config_of(tmp_path, source, properties))
    faults = caught.value.message.replace(f"{tmp_path}/", "").splitlines()
    for beginning in (
        "model.py:1: there is no module 'nosuchmodule'",
        "serving.properties:1: option.output_formatter=xml: expected json",
        "serving.properties:2: option.device=cuda: there is no GPU",
        "serving.properties:3: option.pipeline_parallel_degree=2: ",
        "config.json: model_type 'lama' is not a language model",
        f"{tmp_path}: there are no weights",
    ):
        assert [line for line in faults if line.startswith(beginning)], beginning
    assert len(faults) == 6


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "tokenizer.json").unlink(), "there is no tokenizer: expected tokenizer.json"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "tokenizer.json: "),
        (lambda path: (path / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json: expected a JSON"),
        (lambda path: (path / "generation_config.json").write_text("{"), "generation_config.json is not valid JSON"),
    ],
)
def test_a_tokenizer_that_would_not_load_is_refused_in_the_same_words(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(write_sketch(tmp_path))
    with pytest.raises(ModelLoadError, match=message) as checked:
        handler_of(config_of(tmp_path, None, ""))
    config = config_of(tmp_path, None, "")

    def load() -> None:
        check(config)
        Tokenizer.load(tmp_path)

    with pytest.raises(ModelLoadError) as loaded:
        load()
    assert checked.value.message == loaded.value.message


def test_a_near_name_is_suggested(tmp_path: Path) -> None:
    source = "def answer(inputs): ...\ndef other(inputs): ..."
    for properties, near in (
        ("option.handler=anser", "answer"),
        ("option.entryPoint=model.py:anser", "answer"),
        ("option.entryPoint=modle.py", "model.py"),
        ("option.entryPoint=djl_python.hugingface", "djl_python.huggingface"),
    ):
        with pytest.raises(ModelLoadError, match=rf"serving.properties:1: .*; did you mean {re.escape(near)}\?$"):
            handler_of(config_of(tmp_path, source, properties))

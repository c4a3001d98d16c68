"""Which handler a model directory has. Imports run in this process: what they change is put back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import djl_python.huggingface
from djl_python.config import TASKS, TEXT_GENERATION, ModelConfig, Options, ServerConfig, Task, parse_model_spec
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.core.registry import load_object
from djl_python.handler import Handler
from djl_python.sources import load_model_config
from djl_python.usercode.module import load_user_module
from djl_python.worker import entry_point
from djl_python.worker.entry_point import Location, find_handler, locate
from djl_python.worker.thread import HandlerThread
from djl_python.worker.user_handler import UserHandler

Make = Callable[..., ModelConfig]

HANDLE = "def handle(inputs):\n    return None\n"


class FakeBuiltIn(Handler):
    async def load(self, context: Any) -> None: ...

    async def serve(self, inputs: Any, reply: Any) -> None: ...


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    row = Task(TEXT_GENERATION, handler=f"{__name__}:FakeBuiltIn", check="", without_effect="")
    monkeypatch.setitem(TASKS, TEXT_GENERATION, row)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
async def find(config_of: Make) -> Callable[..., Handler]:
    thread = HandlerThread()

    def find(source: str | None = None, **options: Any) -> Handler:
        return find_handler(config_of(source, **options), thread)

    return find


Find = Callable[..., Handler]


def target_of(handler: Handler) -> Any:
    assert isinstance(handler, UserHandler)
    return handler.target


def test_model_py(find: Find) -> None:
    assert target_of(find(HANDLE)).__name__ == "handle"


def test_the_models_own_file_comes_before_model_py(find: Find) -> None:
    handler = find("def handle(i): pass", files={"demo.py": "def handle(i): 'mine'"})
    assert target_of(handler).__module__ == "demo"


def test_option_handler_names_the_function(find: Find) -> None:
    assert target_of(find("def other(i): pass", handler="other")).__name__ == "other"


@pytest.mark.parametrize(
    ("value", "module"),
    [("serve.py", "serve"), ("serve", "serve"), ("pkg.serve", "pkg.serve"), ("pkg/serve.py", "serve")],
)
def test_entry_point_names_a_file_or_a_module(find: Find, value: str, module: str) -> None:
    files = {"serve.py": HANDLE, "pkg/__init__.py": "", "pkg/serve.py": HANDLE}
    assert target_of(find("raise SystemExit", files=files, entry_point=value)).__module__ == module


@pytest.mark.parametrize("value", ["serve:Mine", "serve.py:Mine"])
def test_entry_point_names_an_object(find: Find, value: str) -> None:
    files = {"serve.py": "class Mine:\n    def handle(self, inputs): ..."}
    assert target_of(find(files=files, entry_point=value)).__name__ == "Mine"


def test_a_single_class_with_handle_is_found(find: Find) -> None:
    assert target_of(find("class Mine:\n    def handle(self, inputs): ...\nclass Other: ...")).__name__ == "Mine"


def test_a_base_is_there_for_its_subclass(find: Find) -> None:
    source = "class Base:\n    def handle(self, i): ...\nclass Mine(Base): ..."
    assert target_of(find(source)).__name__ == "Mine"


def test_a_handler_subclass_is_used_as_it_is(find: Find) -> None:
    handler = find(
        """
        from djl_python.handler import Handler
        class Mine(Handler):
            async def load(self, context): ...
            async def serve(self, inputs, reply): ...
        """
    )
    assert type(handler).__name__ == "Mine"


@pytest.mark.parametrize("name", ["djl_python.huggingface", "djl_python.transformers_neuronx", "text-generation"])
def test_built_in_by_its_old_and_new_names(find: Find, name: str) -> None:
    assert isinstance(find(entry_point=name), FakeBuiltIn)


async def test_a_checkpoint_alone_has_the_built_in_handler(find: Find) -> None:
    assert isinstance(find(files={"config.json": "{}"}), FakeBuiltIn)


#: A checkpoint's config.json -> the task that DJL's service does with it.
OTHER_TASKS = {
    "BertForMaskedLM": "fill-mask",
    "RobertaForQuestionAnswering": "question-answering",
    "LlamaForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "T5ForConditionalGeneration": "text2text-generation",
}


def checkpoint(directory: Path, architecture: str) -> Path:
    encoder_decoder = OTHER_TASKS[architecture] == "text2text-generation"
    content = {"architectures": [architecture], "is_encoder_decoder": encoder_decoder}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize("architecture", OTHER_TASKS)
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"rolling_batch": "auto"},
        {"rolling_batch": "disable", "entryPoint": "djl_python.huggingface"},
    ],
)
async def test_djls_service_takes_what_it_is_named_for_and_what_nobody_else_does(
    tmp_path: Path, architecture: str, said: dict[str, str]
) -> None:
    config, task = configured(checkpoint(tmp_path, architecture), said), OTHER_TASKS[architecture]
    if task in TASKS and "entryPoint" not in said:
        assert locate(config) == Location()
        assert isinstance(find_handler(config, HandlerThread()), load_object(TASKS[task].handler))
    else:
        assert locate(config).task == task
        assert target_of(find_handler(config, HandlerThread())) is djl_python.huggingface.handle


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ("rolling_batch", {"rolling_batch": "vllm"}),
        ("rolling_batch", {"rolling_batch": "lmi-dist", "entryPoint": "djl_python.huggingface"}),
        ("async_mode", {"rolling_batch": "disable", "async_mode": "true"}),
        ("entryPoint", {"entryPoint": "djl_python.lmi_vllm.vllm_async_service"}),
        ("entryPoint", {"entryPoint": "djl_python.transformers_neuronx"}),
    ],
)
async def test_where_an_engine_is_named_it_takes_encoder_decoder_models_alone(
    tmp_path: Path, asks: str, said: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(checkpoint(tmp_path, "BertForMaskedLM"), said)
    assert locate(config) == Location()
    assert isinstance(find_handler(config, HandlerThread()), load_object(TASKS["fill-mask"].handler))
    config = configured(checkpoint(tmp_path, "T5ForConditionalGeneration"), said)
    assert target_of(find_handler(config, HandlerThread())) is djl_python.huggingface.handle
    assert f"option.{asks}={said[asks]} has no effect" in caplog.text


@pytest.mark.parametrize(
    ("task", "said", "by_the_service"),
    [
        ("", {}, False),
        ("", {"rolling_batch": "builtin"}, False),
        ("text2text-generation", {}, False),
        ("", {"rolling_batch": "disable"}, True),
        ("summarization", {}, True),
        ("summarization", {"rolling_batch": "auto"}, False),
    ],
)
async def test_encoder_decoder_models_are_batched_unless_djls_answers_are_asked_for(
    tmp_path: Path, task: str, said: dict[str, str], by_the_service: bool
) -> None:
    config = configured(checkpoint(tmp_path, "T5ForConditionalGeneration"), {**said, "task": task} if task else said)
    if by_the_service:
        assert target_of(find_handler(config, HandlerThread())) is djl_python.huggingface.handle
    else:
        assert isinstance(find_handler(config, HandlerThread()), load_object(TASKS["text2text-generation"].handler))


@pytest.mark.parametrize("said", [{"rolling_batch": "engine:Mine"}, {"entryPoint": "text-generation"}])
async def test_a_users_engine_or_handler_option_is_served_by_the_built_in_handler(
    tmp_path: Path, said: dict[str, str]
) -> None:
    assert locate(configured(checkpoint(tmp_path, "T5ForConditionalGeneration"), said)) == Location()


async def test_a_task_tells_too_and_a_checkpoint_when_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    def fetch(model_id: str, revision: str, *_: Any) -> Path:
        fetched.append((model_id, revision))
        return checkpoint(tmp_path, "T5ForConditionalGeneration")

    monkeypatch.setattr(entry_point, "local_path", fetch)
    told = ModelConfig(name="m", option=Options(model_id="a/b", task="summarization"))
    assert locate(told).task == "text2text-generation"
    assert target_of(find_handler(told, HandlerThread())) is djl_python.huggingface.handle
    assert fetched == []
    untold = ModelConfig(name="m", option=Options(model_id="a/b", revision="r", rolling_batch="disable"))
    assert locate(untold) == Location()
    assert target_of(find_handler(untold, HandlerThread())) is djl_python.huggingface.handle
    assert fetched == [("a/b", "r")]
    untold = ModelConfig(name="m", option=Options(model_id="a/b", revision="r"))
    assert isinstance(find_handler(untold, HandlerThread()), load_object(TASKS["text2text-generation"].handler))
    monkeypatch.setattr(entry_point, "local_path", lambda *_: tmp_path / "of_text")
    assert isinstance(find_handler(untold, HandlerThread()), FakeBuiltIn)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    monkeypatch.setattr(entry_point, "local_path", lambda *_: tmp_path)
    assert isinstance(find_handler(untold, HandlerThread()), load_object(TASKS["feature-extraction"].handler))


def configured(directory: Path, said: dict[str, str]) -> ModelConfig:
    lines = [f"option.{key}={value}" for key, value in said.items()]
    (directory / "serving.properties").write_text("\n".join(lines))
    return load_model_config(parse_model_spec(str(directory)), ServerConfig(), {})


def test_a_model_py_with_only_formatters_too(find: Find, tmp_path: Path) -> None:
    handler = find(
        """
        from djl_python.output_formatter import output_formatter
        @output_formatter
        def custom(request_output):
            return ""
        """
    )
    assert isinstance(handler, FakeBuiltIn)
    assert load_user_module(tmp_path).custom is sys.modules["model"].custom


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (None, {}, "nothing to serve: there is no model.py and no config.json"),
        ("def other(i): pass", {}, "model.py has no function 'handle' .* Its functions: other"),
        ("x = 1", {"handler": "x"}, "the handler is a int"),
        ("class A: ...", {"handler": "A"}, r"class A has no method handle\(inputs\)"),
        (None, {"entry_point": "gone.py"}, "gone.py does not exist"),
        (None, {"entry_point": "gone_module"}, "option.entryPoint=gone_module: expected a .py file"),
        (None, {"entry_point": "http://127.0.0.1:9/model.py?secret"}, r"9/model.py: can't be downloaded: .*refused"),
        (
            "class A:\n    def handle(self, i): ...\nclass B:\n    def handle(self, i): ...",
            {},
            "several classes with a method handle: A, B. option.entryPoint=model.py:B takes one",
        ),
        (HANDLE, {"entry_point": "model.py:gone"}, "model.py has no 'gone'"),
    ],
)
def test_a_missing_handler_is_named(find: Find, source: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        find(source, **options)


def test_an_object_that_is_not_there(find: Find) -> None:
    with pytest.raises(ConfigError, match="has no 'Gone'"):
        find(files={"serve.py": ""}, entry_point="serve:Gone")


def test_errors_of_the_users_import_are_left_as_they_are(find: Find) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        find("import not_there")
    assert "model" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        find(files={"serve.py": "import not_there"}, entry_point="serve")


def test_the_model_directory_is_the_first_place_for_imports(find: Find, tmp_path: Path) -> None:
    files = {"handlers.py": "here = True", "model.py": f"import handlers\nassert handlers.here\n{HANDLE}"}
    assert target_of(find(files=files)).__module__ == "model"
    assert sys.path[0] == str(tmp_path.resolve())

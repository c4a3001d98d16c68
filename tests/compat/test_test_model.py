"""Handlers without a server: requests, batches, answers, and the command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from djl_python import huggingface
from djl_python import test_model as kit
from djl_python.inputs import Input
from djl_python.outputs import Output

SOURCE = """
from djl_python import Input, Output

def handle(inputs: Input):
    if inputs.is_empty():
        return None
    open("model.py").close()  # in the model's directory
    outputs = Output()
    for index, item in enumerate(inputs.get_batches()):
        answer = {"mood": inputs.get_property("mood"), "data": item.get_data()}
        outputs.add_as_json(answer, batch_index=index if inputs.is_batch() else None)
    return outputs
"""


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "serving.properties").write_text("# a comment\noption.mood=good\nbatch_size = 4\n")
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def answers(output: Output) -> list[Any]:
    return [json.loads(value) for value in output.content.values]


def test_a_handler_has_its_models_settings(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTION_MOOD", "bad")
    monkeypatch.setenv("OPTION_OF_THE_ENVIRONMENT", "x")
    handler = kit.TestHandler("model.py", model_dir)
    assert handler.serving_properties["mood"] == "good"
    assert handler.serving_properties["of_the_environment"] == "x"
    assert answers(handler.inference(kit.create_text_request("hello"))) == [{"mood": "good", "data": "hello"}]
    batch = handler.inference_batch([{"a": 1}, [2]], [{"Mood": "of one"}])
    assert answers(batch) == [{"mood": "good", "data": {"a": 1}}, {"mood": "good", "data": [2]}]
    assert handler.inference_rolling_batch([{"a": 1}, {"a": 2}])[1] == '{"mood":"good","data":{"a":2}}'


def test_the_environment_alone_says_which_model(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Path(__file__).parents[2] / "serving_templates" / "demo"
    given = {"HF_MODEL_ID": str(demo), "OPTION_ROLLING_BATCH": "auto", "OPTION_TGI_COMPAT": "true"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert huggingface.__spec__ is not None and huggingface.__spec__.loader is not None
    fresh = importlib.util.module_from_spec(huggingface.__spec__)  # as a process has it that has loaded no model
    huggingface.__spec__.loader.exec_module(fresh)
    handler = kit.TestHandler(fresh)
    expected = {"model_id": str(demo), "rolling_batch": "auto", "tgi_compat": "true"}
    assert handler.serving_properties.items() >= expected.items()
    question = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 4}}
    short, long = handler.inference_rolling_batch(
        [question, {"inputs": "A little redhood is", "parameters": {"min_new_tokens": 6, "max_new_tokens": 8}}]
    ).values()
    (answer,) = json.loads(short)
    assert (answer["generated_text"], answer["details"]["generated_tokens"]) == (" Deep learning is a", 4)
    assert len(long) > len(short)
    monkeypatch.setenv("HF_MODEL_ID", "")
    assert "model_id" not in kit.update_properties_with_env_vars({})


def test_a_handler_that_answers_step_by_step() -> None:
    module = ModuleType("stepping")
    rest = {"0": list("abc"), "1": list("x")}

    def handle(inputs: Input) -> Output:
        outputs = Output()
        for index, letters in enumerate(one for one in rest.values() if one):
            data = letters.pop(0)
            outputs.add(Output.binary_encode({"data": data, "last": not letters}), batch_index=index)
        return outputs

    module.handle = handle  # type: ignore[attr-defined]
    assert kit.TestHandler(module).inference_rolling_batch([{}, {}]) == {0: "abc", 1: "x"}


def test_requests_of_files_and_texts(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "b.png").write_bytes(b"png")
    request = kit.create_request([f"image={tmp_path / 'b.png'}", f"data={tmp_path / 'a.json'}"], ["mood=a=b"])
    assert request.get_property("content-type") == "application/json"
    assert request.get_as_json("data") == {"x": 1}
    assert request.get_as_bytes("image") == b"png"
    assert request.get_property("mood") == "a=b"
    assert kit.create_request(['{"a": "b=c"}']).get_data() == {"a": "b=c"}
    assert kit.create_request(["hello"]).get_data() == "hello"
    assert kit.create_json_request({"a": [1]}).get_data() == kit.create_json_request({"a": [1]}, "data").get_as_json()
    assert kit.create_json_request({"a": [1]}).get_property("content-type") == "application/json"
    assert kit.create_request([str(tmp_path / "b.png")]).get_property("content-type") == "image/png"
    with pytest.raises(ValueError, match="Invalid model parameter: mood"):
        kit.create_request([], ["mood"])


def test_arrays_there_and_back() -> None:
    arrays = [np.arange(3.0)]
    for request in (kit.create_numpy_request(arrays), kit.create_npz_request(arrays, "data")):
        np.testing.assert_array_equal(request.get_data()[0], arrays[0])
    output = Output().add_as_numpy(arrays, "a").add_as_npz(arrays, "b").add("text", "c")
    np.testing.assert_array_equal(kit.extract_output_as_numpy(output, "a")[0], arrays[0])
    np.testing.assert_array_equal(kit.extract_output_as_npz(output, "b")[0], arrays[0])
    assert kit.extract_output_as_string(output, "c") == "text"
    assert kit.extract_output_as_bytes(output, "c") == b"text"


def test_djls_encoding_of_a_step() -> None:
    result = {"data": "é", "last": "True"}
    assert kit.decode_encoded_output_binary(Output.binary_encode(result)) == result


def test_settings_of_a_directory(tmp_path: Path) -> None:
    assert kit.load_properties(None) == {}
    assert kit.load_properties(tmp_path) == {}


def test_the_command(model_dir: Path) -> None:
    command = [sys.executable, "-m", "djl_python.test_model", "--model-dir", str(model_dir)]
    command += ["--input", '{"a": 1}', "--parameters", "mood=fine"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    shown, answer = run.stdout.splitlines()
    assert shown.startswith("output: Output(code=200")
    assert json.loads(answer) == {"mood": "fine", "data": {"a": 1}}

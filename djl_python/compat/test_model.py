"""Test a handler without a server: `TestHandler`, functions that make requests, and the command `djl-test-model`.

Runs in the process of the test. Source: DJL's "Testing a model handler".

    from djl_python.test_model import TestHandler, create_text_request

    handler = TestHandler("model.py", "my_model")
    print(handler.inference(create_text_request("hello")))
"""

from __future__ import annotations

import argparse
import contextlib
import os
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..config.environment import environment_settings
from ..config.properties_file import read_properties
from ..formats.json_framing import JSON, encode_json
from ..inputs import BATCH_SIZE, Input
from ..outputs import NDLIST, NPZ, Output
from ..usercode.batch_keys import batch_key
from .np_util import to_nd_list, to_npz
from .service_loader import ModelService, load_model_service

TEXT: Final = "text/plain"
#: Suffix of a file -> the content type of what it holds.
_TYPES: Final[Mapping[str, str]] = {
    ".csv": "text/csv",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": JSON,
    ".ndlist": NDLIST,
    ".npy": "application/x-npy",
    ".npz": NPZ,
    ".png": "image/png",
    ".txt": TEXT,
    ".wav": "audio/wav",
}


def create_request(input_files: Iterable[str], parameters: Iterable[str] | None = None) -> Input:
    """A request of files, or of texts that name none: each `value` or `key=value`; `parameters` are `key=value` too.

    The entry "data", or else the first, decides the content type: by the file's suffix; a text is JSON where it looks
    like an object, else plain text.

    Raises:
        ValueError: a parameter has no "=".
    """
    request = Input()
    request.properties["device_id"] = "-1"
    for parameter in parameters or ():
        name, separator, value = parameter.partition("=")
        if not separator:
            raise ValueError(f"Invalid model parameter: {parameter}, expected key=value")
        request.properties[name] = value
    kinds: dict[str | None, str | None] = {}
    for given in input_files:
        key, separator, value = given.partition("=")
        if not separator or given.startswith("{"):
            key, value = "", given
        is_file = len(value) < 4096 and Path(value).is_file()
        request.content.add(key or None, Path(value).read_bytes() if is_file else value.encode())
        kinds.setdefault(key or None, _TYPES.get(Path(value).suffix) if is_file else _kind_of_text(value))
    kind = kinds.get("data") or next(iter(kinds.values()), None)
    if kind is not None:
        request.properties["content-type"] = kind
    return request


def _kind_of_text(text: str) -> str:
    return JSON if text.startswith("{") and text.endswith("}") else TEXT


def create_concurrent_batch_request(
    inputs: Sequence[Any],
    properties: Sequence[Mapping[str, Any]] | None = None,
    serving_properties: Mapping[str, Any] | None = None,
) -> Input:
    """A dynamic batch of JSON requests; `properties` are each one's headers, `serving_properties` the model's."""
    batch = Input()
    batch.properties = dict(serving_properties or {})
    batch.function_name = batch.properties.get("handler", "handle")
    batch.properties[BATCH_SIZE] = str(len(inputs))
    for index, body in enumerate(inputs):
        headers = {"content-type": JSON} | dict(properties[index] if properties and index < len(properties) else {})
        for name, value in headers.items():
            batch.properties[batch_key(name.lower(), index)] = str(value)
        batch.content.add(batch_key("data", index), encode_json(body))
    return batch


def create_text_request(text: str, key: str | None = None) -> Input:
    """A request of plain text."""
    return _request(text.encode(), TEXT, key)


def create_json_request(data: Any, key: str | None = None) -> Input:
    """A request whose body is a value, such as a dict, as JSON."""
    return _request(encode_json(data), JSON, key)


def create_numpy_request(list: Any, key: str | None = None) -> Input:
    """A request of arrays, in DJL's NDList format."""
    return _request(to_nd_list(list), NDLIST, key)


def create_npz_request(list: Any, key: str | None = None) -> Input:
    """A request of arrays, in .npz format."""
    return _request(to_npz(list), NPZ, key)


def _request(data: bytes, content_type: str, key: str | None) -> Input:
    request = Input()
    request.properties = {"device_id": "-1", "content-type": content_type}
    request.content.add(key, data)
    return request


def extract_output_as_input(outputs: Output) -> Input:
    """An answer as a request, whose methods decode it."""
    inputs = Input()
    inputs.properties, inputs.content = outputs.properties, outputs.content
    return inputs


def extract_output_as_bytes(outputs: Output, key: str | None = None) -> bytes | None:
    """An entry of an answer as bytes."""
    return extract_output_as_input(outputs).get_as_bytes(key)


def extract_output_as_numpy(outputs: Output, key: str | None = None) -> list[Any]:
    """An entry of an answer as arrays, from DJL's NDList format."""
    return extract_output_as_input(outputs).get_as_numpy(key)


def extract_output_as_npz(outputs: Output, key: str | None = None) -> list[Any]:
    """An entry of an answer as arrays, from .npz format."""
    return extract_output_as_input(outputs).get_as_npz(key)


def extract_output_as_string(outputs: Output, key: str | None = None) -> str:
    """An entry of an answer as text."""
    return extract_output_as_input(outputs).get_as_string(key)


def decode_encoded_output_binary(binary: bytes) -> dict[str, str]:
    """What `Output.binary_encode` has encoded.

    Raises:
        struct.error: it has encoded nothing like this.
    """
    at = 2

    def text() -> str:
        nonlocal at
        (size,) = struct.unpack_from(">h", binary, at)
        at += 2 + size
        return binary[at - size : at].decode()

    return {text(): text() for _ in range(*struct.unpack_from(">h", binary))}


def load_properties(properties_dir: str | Path | None) -> dict[str, str]:
    """The settings of a directory's serving.properties, without the prefix `option.`; none where there is no file.

    Raises:
        ConfigError: a line can't be read.
    """
    path = Path(properties_dir or "", "serving.properties")
    if properties_dir is None or not path.is_file():
        return {}
    entries, _ = read_properties(path)
    return {key.removeprefix("option."): entry.value for key, entry in entries.items()}


def update_properties_with_env_vars(kwargs: dict[str, str]) -> dict[str, str]:
    """Add the settings of the environment that `kwargs` lacks, `OPTION_*` variables, HF_MODEL_ID and the others that a
    server reads; returns it."""
    for name, value in environment_settings().items():
        kwargs.setdefault(name, value)
    return kwargs


class TestHandler:
    """A handler as the server would call it.

    Args:
        entry_point: a .py file of the directory, a module's name, or a module. `djl_python.huggingface` is one.
        model_dir: the model's directory; its serving.properties and the environment (`OPTION_*` variables, HF_MODEL_ID)
            are the model's settings.
    """

    __test__ = False  # a class of tests to nobody but its name

    def __init__(self, entry_point: str | ModuleType, model_dir: str | Path | None = None) -> None:
        self.serving_properties = load_properties(model_dir)
        update_properties_with_env_vars(self.serving_properties)
        self._folder = Path(model_dir or ".").resolve()
        self.serving_properties.pop(BATCH_SIZE, None)  # of an Input, it is the size of the batch that it holds
        if model_dir is not None:
            self.serving_properties.setdefault("model_dir", str(self._folder))
        if isinstance(entry_point, str):
            with contextlib.chdir(self._folder):  # where a worker runs, too
                self.service = load_model_service(self._folder, entry_point)
        else:
            self.service = ModelService(entry_point, None if model_dir is None else str(self._folder))

    def inference(self, inputs: Input) -> Any:
        """What the handler answers to a request. The model's settings are among its properties."""
        inputs.properties = self.serving_properties | inputs.properties
        with contextlib.chdir(self._folder):
            return self.service.invoke_handler(inputs.get_function_name(), inputs)

    def inference_batch(
        self,
        inputs: Sequence[Any],
        properties: Sequence[Mapping[str, Any]] | None = None,
        serving_properties: Mapping[str, Any] | None = None,
    ) -> Any:
        """What the handler answers to a dynamic batch of JSON requests."""
        model = self.serving_properties if serving_properties is None else serving_properties
        return self.inference(create_concurrent_batch_request(inputs, properties, model))

    def inference_rolling_batch(
        self,
        inputs: Sequence[Any],
        properties: Sequence[Mapping[str, Any]] | None = None,
        serving_properties: Mapping[str, Any] | None = None,
    ) -> dict[int, str]:
        """Each request's whole answer, of a handler that answers a batch at once or, as in DJL, step by step."""
        answers = dict.fromkeys(range(len(inputs)), "")
        live = list(answers)
        bodies = list(inputs)
        while live:
            outputs = self.inference_batch(bodies, properties, serving_properties)
            pieces = [_step_result(value) for value in outputs.content.get_values()]
            for index, (text, _) in zip(live, pieces, strict=True):
                answers[index] += text
            live = [index for index, (_, last) in zip(live, pieces, strict=True) if not last]
            bodies = [{"inputs": ""}] * len(live)
        return answers


def _step_result(value: bytes) -> tuple[str, bool]:
    """An entry's text, and whether it is the last of its request: only `binary_encode` begins with a zero."""
    if not value.startswith(b"\0"):
        return value.decode(), True
    result = decode_encoded_output_binary(value)
    return result.get("data", "") or result.get("error", ""), result["last"].lower() == "true"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("djl-test-model", description="Call a model directory's handler once.")
    parser.add_argument("--model-dir", default=".", help="the model's directory; default: the current one")
    parser.add_argument("--entry-point", default="model.py", help="a .py file of it, or a module; default: model.py")
    parser.add_argument("--handler", default="handle", help="the function to call; default: handle")
    parser.add_argument("--input", nargs="+", default=["input.txt"], help="files or texts, each VALUE or KEY=VALUE")
    parser.add_argument("--parameters", nargs="+", help="further properties, KEY=VALUE")
    return parser.parse_args(arguments)


def run(arguments: Sequence[str] | None = None) -> None:
    """The command `djl-test-model`: load the handler with its first, empty call, and print the answer to a request."""
    given = _arguments(arguments)
    request = create_request(given.input, given.parameters)
    handler = TestHandler(given.entry_point, given.model_dir)
    handler.inference(Input())
    request.function_name = given.handler
    outputs = handler.inference(request)
    print(f"output: {outputs}")
    if isinstance(outputs, Output) and not outputs.content.is_empty():
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join(outputs.content.get_values()) + os.linesep.encode())


if __name__ == "__main__":
    run()

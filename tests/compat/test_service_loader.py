"""Model directories' code, loaded by DJL's functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.inputs import Input
from djl_python.service_loader import (
    find_decorated_function,
    get_annotated_function,
    has_function_in_module,
    load_model_service,
)

SOURCE = """
from djl_python.output_formatter import output_formatter

def handle(inputs):
    return inputs.get_property("model_dir")

def ping(inputs):
    return "pong"

@output_formatter
def write(response: dict) -> dict:
    return response
"""


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "beside_it.py").write_text("def handle(inputs):\n    return 'beside'\n")
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_files_and_modules(model_dir: Path) -> None:
    service = load_model_service(str(model_dir), "model.py", "-1")
    assert service.invoke_handler("handle", Input()) == str(model_dir)
    assert service.invoke_handler(None, Input()) == str(model_dir)
    assert service.invoke_handler("ping", Input()) == "pong"
    assert load_model_service(model_dir, "beside_it").invoke_handler("handle", Input()) == "beside"
    absolute = load_model_service("/elsewhere", str(model_dir / "model.py"))
    assert absolute.invoke_handler("ping", Input()) == "pong"
    with pytest.raises(ValueError, match=r"nothing.py does not exist"):
        load_model_service(model_dir, "nothing.py")
    with pytest.raises(AttributeError):
        service.invoke_handler("nothing", Input())


def test_decorated_functions(model_dir: Path) -> None:
    write = get_annotated_function(model_dir, "is_output_formatter")
    assert write is not None
    assert write.__name__ == "write"
    module = load_model_service(model_dir, "model.py").module
    assert find_decorated_function(module, "output_formatter") is write
    assert get_annotated_function(model_dir, "is_input_formatter") is None
    assert get_annotated_function(model_dir / "none", "is_input_formatter") is None
    assert has_function_in_module(module, "handle")
    assert not has_function_in_module(module, "write_all")

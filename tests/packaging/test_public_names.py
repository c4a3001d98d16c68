"""The names users import, held literally: a change here is a change for them."""

from __future__ import annotations

import inspect

import djl_python
import djl_python.handler
import djl_python.output_formatter


def test_package_exports() -> None:
    names = ["Input", "Output", "PairList", "ParameterError", "PayloadError", "__version__"]
    assert djl_python.__all__ == names
    assert all(hasattr(djl_python, name) for name in djl_python.__all__)


def test_what_handlers_are_written_against() -> None:
    public = {
        name
        for name, found in vars(djl_python.handler).items()
        if inspect.isclass(found) and found.__module__ == "djl_python.handler"
    }
    assert public == {"Context", "Handler", "Metrics", "Reply"}


def test_what_output_formatters_are_written_with() -> None:
    types = {"RequestInput", "RequestOutput", "Sequence", "TextGenerationOutput", "TextInput", "Token"}
    assert types | {"output_formatter"} <= set(djl_python.output_formatter.__all__)
    assert all(hasattr(djl_python.output_formatter, name) for name in djl_python.output_formatter.__all__)

"""The documentation of a row is true."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from djl_python.config import ModelConfig
from djl_python.engine.interface import EngineSettings
from djl_python.engine.row import Engine


def test_the_example_of_a_row() -> None:
    assert Engine.__doc__ is not None
    example = textwrap.dedent(Engine.__doc__.partition("::\n")[2])
    names: dict[str, Any] = {
        "Annotated": Annotated,
        "Engine": Engine,
        "EngineSettings": EngineSettings,
        "Meta": Meta,
        "msgspec": msgspec,
    }
    exec(compile(example, "<example>", "exec", dont_inherit=True), names)
    row: Engine[Any] = names["ENGINE"]
    options = row.options_of(ModelConfig(name="m", engine_options={"depth": 5}))
    settings = row.settings(EngineSettings(model_path="there"), options, {})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=row.settings_type)
    assert (sent.model_path, sent.depth) == (str(Path("there")), 5)  # type: ignore[attr-defined]
    row.check_model(ModelConfig(name="m"))

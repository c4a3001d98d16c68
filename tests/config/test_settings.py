"""The declarations themselves."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from djl_python.config import (
    ENGINES,
    OPTIONS_WITHOUT_EFFECT,
    SERVING_WITHOUT_EFFECT,
    ModelSpec,
    Options,
    ServerConfig,
    ServingSettings,
    own_options,
)
from djl_python.config.binding import settings_of
from djl_python.config.engines import BUILT_IN
from djl_python.sources import load_model_config

RESULTS = {"given_keys", "provenance", "traces", "warnings"}


@pytest.mark.parametrize("struct", [ServingSettings, Options, ServerConfig])
def test_every_setting_is_described(struct: type[msgspec.Struct]) -> None:
    described = {setting.field for setting in settings_of(struct) if setting.help.endswith((".", "..."))}
    assert set(struct.__struct_fields__) - RESULTS == described


@pytest.mark.parametrize("engine", ENGINES)
def test_no_setting_of_a_model_is_declared_twice(engine: str) -> None:
    settings = [setting for struct in (Options, own_options(engine)) for setting in settings_of(struct, "option.")]
    keys = [name for setting in settings for name in (setting.key, *setting.aliases)]
    assert len(keys) == len(set(keys))
    without_effect = {f"option.{name}" for name in OPTIONS_WITHOUT_EFFECT} | SERVING_WITHOUT_EFFECT.keys()
    assert engine != BUILT_IN or without_effect.isdisjoint(keys)


def test_arguments_of_djls_embedders_have_no_prefix(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("pooling=cls\nnormalize=False\nreranking=true\n")
    (tmp_path / "model.py").write_text("")
    config = load_model_config(ModelSpec(name="m", url=str(tmp_path)), ServerConfig(), {})
    option = config.option
    assert (option.pooling, option.normalize, option.reranking) == ("cls", False, True)


def test_a_setting_has_one_default() -> None:
    assert SERVING_WITHOUT_EFFECT.keys().isdisjoint(setting.key for setting in settings_of(ServingSettings))
    shared = {setting.field: setting.default for setting in settings_of(ServerConfig)}
    for setting in settings_of(ServingSettings):
        assert shared.get(setting.field, setting.default) == setting.default, setting.key


def test_djl_spellings() -> None:
    """Keys are written as DJL writes them: camelCase only where it is."""
    keys = {setting.key for struct in (ServingSettings, Options) for setting in settings_of(struct)}
    assert {key for key in keys if not re.fullmatch(r"[a-z0-9_]+", key)} == {
        *("minWorkers", "maxWorkers", "cpu.minWorkers", "cpu.maxWorkers", "gpu.minWorkers", "gpu.maxWorkers"),
        "entryPoint",
        "pythonExecutable",
    }

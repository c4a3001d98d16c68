from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djl_python.config.adapters import adapter_rank, adapters_of


def made(directory: Path, rank: int = 8) -> Path:
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    return directory


def configured_adapters(
    directory: Path, model_id: str = "", engine: str = "vllm", **options: Any
) -> tuple[dict[str, str], list[str]]:
    return adapters_of(engine, {"enable_lora": True, **options}, model_id, directory)


def test_a_folder_for_each_beside_the_settings_and_in_the_checkpoint(tmp_path: Path) -> None:
    model, checkpoint = tmp_path / "model", tmp_path / "checkpoint"
    own = {name: str(made(model / "adapters" / name)) for name in ("a", "b")}
    further = str(made(checkpoint / "adapters" / "c"))
    made(checkpoint / "adapters" / "a")
    (model / "adapters" / ".cache").mkdir()
    assert configured_adapters(model) == (own, [])
    assert configured_adapters(model, str(checkpoint)) == ({**own, "c": further}, [])


def test_another_folder_and_modules_by_name(tmp_path: Path) -> None:
    here, there = made(tmp_path / "loras" / "a"), made(tmp_path / "b")
    assert configured_adapters(tmp_path, adapters="loras") == ({"a": str(here)}, [])
    expected = {"x": str(here), "y": str(there)}
    assert configured_adapters(tmp_path, lora_modules=f"x=loras/a, y={there}") == (expected, [])
    assert configured_adapters(
        tmp_path, lora_modules=f'[{{"name": "x", "path": "loras/a"}}, {{"name": "y", "path": "{there}"}}]'
    ) == (
        expected,
        [],
    )


@pytest.mark.parametrize("engine", ["vllm", "auto"])
def test_adapters_that_are_there_need_no_setting(tmp_path: Path, engine: str) -> None:
    here = made(tmp_path / "adapters" / "a")
    (tmp_path / "adapters" / "code").mkdir()
    assert adapters_of(engine, {}, "", tmp_path) == ({"a": str(here)}, [])


@pytest.mark.parametrize("options", [{"enable_lora": False}, {"engine": "deepspeed"}])
def test_none_where_they_are_not_served(tmp_path: Path, options: dict[str, Any]) -> None:
    made(tmp_path / "adapters" / "a")
    assert configured_adapters(tmp_path, **options) == ({}, [])


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("a", "option.lora_modules: expected NAME=PATH, got a"),
        ("{", "option.lora_modules: not valid JSON"),
        ('{"name": "a"}', "option.lora_modules: expected objects such as"),
        ("a=nowhere", "adapter a: there is no adapter_config.json in nowhere: expected what peft saves"),
    ],
)
def test_a_wrong_list_of_adapters_is_refused(tmp_path: Path, modules: str, message: str) -> None:
    (problem,) = configured_adapters(tmp_path, lora_modules=modules)[1]
    assert problem.startswith(message)


def test_ranks(tmp_path: Path) -> None:
    assert adapter_rank(str(made(tmp_path / "a", 32))) == 32

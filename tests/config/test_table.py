"""The tables of settings come from their declarations."""

from __future__ import annotations

import ast
from pathlib import Path

import djl_python
from djl_python.config import environment_table, server_loading, settings_table
from djl_python.config.environment import CONTAINER_MAPS
from djl_python.config.keys.without_effect import OPTIONS_WITHOUT_EFFECT


def test_settings_table() -> None:
    table = settings_table()
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
    assert table.count("\n## ") == 6
    for beginning in (
        "| `batch_size` (also `max_dynamic_batch_size`) | integer | `1` | `SERVING_BATCH_SIZE` |",
        "| `minWorkers` (also `min_workers`) | integer | `1` | `SERVING_MIN_WORKERS` |",
        "| `maxWorkers` (also `max_workers`) | integer |  | `SERVING_MAX_WORKERS` |",
        "| `gpu.maxWorkers` (also `gpu.max_workers`) | integer |  |  |",
        "| `max_idle_time` | number | `60` | `SERVING_MAX_IDLE_TIME` |",
        "| `option.predict_timeout` (also `option.prediction_timeout`) | number | `120` | `OPTION_PREDICT_TIMEOUT`, "
        "`PREDICT_TIMEOUT` |",
        "| `option.trust_remote_code` | true, false | `false` | `OPTION_TRUST_REMOTE_CODE` |",
        "| `option.max_model_len` (also `option.max_total_tokens`, `option.n_positions`) | integer |  "
        "| `OPTION_MAX_MODEL_LEN`, `MAX_TOTAL_TOKENS` |",
        "| `option.kernels` | auto, native, torch | `auto` | `OPTION_KERNELS` |",
        "| `inference_address` | address | `http://127.0.0.1:8080` | `SERVING_INFERENCE_ADDRESS` |",
        "| `drain_timeout` | number | `30` | `SERVING_DRAIN_TIMEOUT` |",
    ):
        assert any(row.startswith(beginning) for row in rows), beginning


def test_every_variable_that_is_read_is_in_a_table() -> None:
    tables = environment_table() + settings_table()
    read = {*CONTAINER_MAPS, *(name for name, _, _ in server_loading.ENVIRONMENT_MAPS)}
    for path in Path(djl_python.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(ast.Name("environ"), "get"), args=[ast.Constant(str(name)), *_]
                ) | ast.Subscript(ast.Name("environ"), ast.Constant(str(name))):
                    read.add(name)
    assert {"HF_MODEL_ID", "DJL_OFFLINE", "MODEL_SERVER_HOME", "SERVING_DOWNLOAD_DIR"} <= read
    assert [name for name in sorted(read) if f"`{name}`" not in tables] == []


def test_the_containers_variables_are_in_the_table() -> None:
    rows = environment_table().splitlines()
    assert "| `HF_REVISION` | `option.revision`, where nothing else sets it. |" in rows
    idle = {name for name, (key, _) in CONTAINER_MAPS.items() if key.removeprefix("option.") in OPTIONS_WITHOUT_EFFECT}
    assert {row.split("`")[1] for row in rows if "has no effect" in row} == idle

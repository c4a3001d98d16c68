"""What runs a model is told wherever one would look: the ready line, the log, pages, the metric, `check --load`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djl_python.engine.native.library import library
from djl_python.testing import RunningServer, running_server, write_byte_tokenizer
from tests.checkpoints import build_checkpoint
from tests.kernels import kernels_or_skip

REFUSAL = "option.block_size=4 is not a multiple of 16"
#: Model -> its settings, its runner, and why the native kernels refuse it.
MODELS = {
    "native": ("", "native", ""),
    "torch": ("option.kernels=torch\n", "torch-paged", ""),
    "refused": ("option.block_size=4\noption.quantize=int8\n", "torch-paged (native products)", REFUSAL),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    kernels_or_skip(library)
    folder = tmp_path_factory.mktemp("models")
    source = write_byte_tokenizer(build_checkpoint(folder / "source", "llama", torch.bfloat16))
    for name, (settings, *_) in MODELS.items():
        shutil.copytree(source, folder / name)
        common = "option.threads=1\noption.kv_cache_memory_mb=16\noption.max_rolling_batch_size=2\n"
        (folder / name / "serving.properties").write_text(common + settings)
    return {name: folder / name for name in MODELS}


@pytest.fixture(scope="module")
def server(directories: dict[str, Path]) -> Iterator[RunningServer]:
    arguments = [word for name, path in directories.items() for word in ("-m", f"{name}={path}")]
    with running_server(*arguments) as running:
        yield running


def get(server: RunningServer, path: str) -> Any:
    with urllib.request.urlopen(server.url + path) as response:
        return json.load(response)


@pytest.mark.parametrize("name", MODELS)
def test_pages(server: RunningServer, name: str) -> None:
    _, runner, refusal = MODELS[name]
    engine = get(server, f"/info?model_name={name}")["engine"]
    assert (engine["runner"], engine["refusal"], engine["dtype"]) == (runner, refusal, "bfloat16")
    assert engine["quantize"] == ("int8" if name == "refused" else "none")
    assert engine["weight_bytes"] > 0 and engine["cache_bytes"] > 0
    assert get(server, f"/v1/models/{name}")["engine"] == engine
    parameters = get(server, f"/v2/models/{name}/config")["parameters"]
    assert {key: entry["string_value"] for key, entry in parameters.items()} == {k: str(v) for k, v in engine.items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_metric(server: RunningServer, name: str) -> None:
    _, runner, refusal = MODELS[name]
    with urllib.request.urlopen(f"{server.url}/metrics") as response:
        lines = response.read().decode().splitlines()
    (line,) = [each for each in lines if each.startswith("djl_engine_info{") and f'model="{name}"' in each]
    assert f'runner="{runner}"' in line and f'refused="{"yes" if refusal else "no"}"' in line
    assert line.endswith(" 1.0")


def test_the_ready_lines_and_the_log(server: RunningServer) -> None:
    lines = server.output().splitlines()
    for name, (_, runner, _) in MODELS.items():
        (line,) = [each for each in lines if each.startswith(f"model {name}: ready after")]
        assert f" s, on {runner}, bfloat16, " in line and line.endswith("cpu")
    (shown,) = [each for each in lines if each.startswith("  warning: ")]
    assert shown.startswith(f"  warning: not on the native kernels: {REFUSAL}. ")
    assert shown.endswith("Its int8 weights are the same there.")
    (logged,) = [each for each in lines if " WARNING refused/0/engine LlamaForCausalLM: not on the native" in each]
    assert REFUSAL in logged


@pytest.mark.parametrize("name", ["native", pytest.param("refused", marks=pytest.mark.slow)])
def test_check_load(directories: dict[str, Path], name: str) -> None:
    _, runner, refusal = MODELS[name]
    done = check(directories[name])
    assert done.returncode == 0
    loaded = done.stdout.partition("\nloaded\n")[2].partition("\n\n")[0].splitlines()
    assert loaded[0].startswith(f"  runner   {runner}, bfloat16, ")
    assert loaded[1].startswith("  weights  ") and loaded[1].endswith(" MiB")
    assert loaded[2].startswith("  cache    up to ")
    assert len(loaded) == (4 if refusal else 3)
    assert not refusal or loaded[3].startswith(f"  warning: not on the native kernels: {refusal}.")


def test_check_load_of_what_does_not_load(directories: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(directories["native"], broken)
    config = json.loads((broken / "config.json").read_bytes())  # which says that weights have other shapes
    (broken / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    done = check(broken)
    assert done.returncode == 1 and "\nloaded\n" not in done.stdout
    assert "djl-serving: it does not load" in done.stderr


def check(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "djl_python", "check", str(directory), "--load"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)

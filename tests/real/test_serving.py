"""A server with trained weights in three precisions gives answers that make sense."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.engine.native.library import library
from djl_python.testing import RunningServer, running_server
from tests.kernels import kernels_or_skip

pytestmark = pytest.mark.slow

PRECISIONS = ("bf16", "int8", "int4")
COLORS = ("red", "blue", "green", "yellow", "orange", "purple", "black", "white", "pink", "brown")


@pytest.fixture(scope="module")
def server(smol: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The same files with settings of their own for each precision."""
    arguments = []
    for precision in PRECISIONS:
        folder = tmp_path_factory.mktemp(precision)
        for file in smol.iterdir():
            (folder / file.name).symlink_to(file)
        quantize = "none" if precision == "bf16" else precision
        settings = f"option.dtype=bf16\noption.quantize={quantize}\noption.max_model_len=512\n"
        (folder / "serving.properties").write_text(f"option.rolling_batch=auto\n{settings}")
        arguments += ["-m", f"{precision}={folder}"]
    with running_server(*arguments, start_timeout_s=300) as running:
        yield running


@pytest.mark.parametrize("precision", PRECISIONS)
def test_three_colors(server: RunningServer, precision: str) -> None:
    body = {
        "model": precision,
        "messages": [{"role": "user", "content": "Name three colors."}],
        "max_tokens": 40,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        choice = json.load(response)["choices"][0]
    said = choice["message"]["content"].lower()
    assert sum(color in said for color in COLORS) >= 2, said


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_fell_back(server: RunningServer, precision: str) -> None:
    kernels_or_skip(library)
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as response:
        told = [line for line in response.read().decode().splitlines() if line.startswith("djl_engine_info{")]
    (line,) = [line for line in told if f'model="{precision}"' in line]
    assert 'runner="native"' in line
    assert f'quantize="{"none" if precision == "bf16" else precision}"' in line

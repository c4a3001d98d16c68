"""A model directory whose checkpoint was quantized beforehand answers as transformers does with the same numbers."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO
from tests.quantized_checkpoints import Method, write_quantized

METHODS = {"awq": Method("gemm"), "gptq": Method("gptq", 4, 128, symmetric=True)}
PROMPT = "Deep learning is"
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    source = folder / "demo"
    shutil.copytree(DEMO, source, ignore=shutil.ignore_patterns("training", "README.md"))
    return {name: write_quantized(source, folder / name, method) for name, method in METHODS.items()}


@pytest.fixture(scope="module")
def server(directories: dict[str, Path]) -> Iterator[RunningServer]:
    arguments = [word for name, path in directories.items() for word in ("-m", f"{name}={path}")]
    with running_server(*arguments, environment={"OPTION_THREADS": "1", "OPTION_KV_CACHE_MEMORY_MB": "64"}) as running:
        yield running


@torch.inference_mode()
def text_of(path: Path) -> str:
    """transformers' own greedy text, of a checkpoint of numbers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    given = tokenizer(PROMPT, return_tensors="pt")
    made = model.generate(**given, max_new_tokens=NEW_TOKENS, do_sample=False)
    text: str = tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


@pytest.mark.parametrize("name", METHODS)
def test_the_text_is_that_of_the_numbers(server: RunningServer, directories: dict[str, Path], name: str) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": NEW_TOKENS, "do_sample": False}}
    request = urllib.request.Request(
        f"{server.url}/predictions/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    expected = text_of(directories[name] / "dense")
    assert len(expected.split()) > 3
    assert answer["generated_text"] == expected
    assert f"with {METHODS[name].name} weights" in server.output()

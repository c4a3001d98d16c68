"""A server of the demo model with a folder `adapters`, and no setting about them: the built-in engine serves them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from djl_python.testing import RunningServer, running_server
from tests.adapters import merge_, write_adapter
from tests.conftest import DEMO

PROMPT = "What is deep learning?"
NAMES = ("first", "second")
#: The code of an adapter with formatters of its own.
CODE = """
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter

@input_formatter
def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    return {"inputs": decoded_payload["question"], "parameters": {"max_new_tokens": 12}}

@output_formatter
def write(response_data: dict) -> dict:
    return {"ANSWER": response_data["generated_text"]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapted")
    (path / "serving.properties").write_text(f"option.model_id={DEMO}\noption.dtype=fp32\noption.threads=1\n")
    for name in NAMES:
        write_adapter(path / "adapters" / name, DEMO, seed=len(name), scale=0.3)
    coded = shutil.copytree(path / "adapters" / "first", path / "adapters" / "coded")
    (coded / "model.py").write_text(CODE)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    running: RunningServer
    with running_server("-m", f"demo={folder}") as running, httpx.Client(base_url=running.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    """What transformers generates, with each adapter merged into the weights; "": without."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    ids, outputs = torch.tensor([tokenizer.encode(PROMPT)]), {}
    for name in ("", *NAMES):
        model: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
        if name:
            merge_(model, folder / "adapters" / name)
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        outputs[name] = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    assert len(set(outputs.values())) == 3
    return outputs


def generated(client: httpx.Client, adapter: str) -> str:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 12}, "adapters": adapter}
    answer = client.post("/invocations", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generated_text"])


def test_requests_of_each_and_of_none_are_generated_together(client: httpx.Client, texts: dict[str, str]) -> None:
    names = ["first", "", "second", "first", ""]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: generated(client, name), names))
    assert answers == [texts[name] for name in names]
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["demo", "coded", *NAMES]
    body = {"model": "second", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == texts["second"]


def test_the_version_of_a_model_that_has_an_adapter_answers_for_it(
    folder: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "serving.properties").write_text((folder / "serving.properties").read_text())
    models = ("-m", f"demo:1={folder}", "-m", f"demo:2={tmp_path}")
    with running_server(*models) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        for name, text in (("first", texts["first"]), ("demo", texts[""]), ("gpt-4", texts[""])):
            body = {"model": name, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
        body = {"model": "first", "prompt": PROMPT}
        refused = client.post("/v1/completions", json=body, headers={"model_version": "2"})
        assert refused.status_code == 404 and "there is no model 'first'" in refused.text


def test_adapters_come_and_go_at_run_time(
    client: httpx.Client, folder: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    source = shutil.copytree(folder / "adapters" / "second", tmp_path / "source")
    answer = client.post("/models/demo/adapters", params={"name": "new", "src": str(source)})
    assert (answer.status_code, answer.json()["status"]) == (200, "Adapter new registered")
    assert generated(client, "new") == texts["second"]
    assert client.delete("/models/demo/adapters/new").status_code == 200
    refused = client.post("/invocations", json={"inputs": PROMPT, "adapters": "new"})
    assert refused.status_code == 424
    assert "there is no adapter new; expected one of coded, first, second" in refused.text


def test_an_unfit_adapter_is_refused_when_it_is_registered(client: httpx.Client, tmp_path: Path) -> None:
    big = write_adapter(tmp_path / "big", DEMO, seed=1, rank=32)
    answer = client.post("/models/demo/adapters", params={"name": "big", "src": str(big)})
    told = "adapter big has rank 32; expected at most option.max_lora_rank=16"
    assert (answer.status_code, answer.json()["message"]) == (400, told)
    (big / "adapter_model.safetensors").rename(big / "adapter_model.bin")
    answer = client.post("/models/demo/adapters", params={"name": "big", "src": str(big)})
    assert answer.status_code == 400
    assert "adapter_model.bin is a pickle, which is never read" in answer.text


def asked(client: httpx.Client, adapter: str, path: str = "/invocations") -> httpx.Response:
    return client.post(path, json={"question": PROMPT, "adapters": adapter})


def test_formatters_of_an_adapter_are_its_requests_own(client: httpx.Client, texts: dict[str, str]) -> None:
    with ThreadPoolExecutor(3) as pool:
        coded = [pool.submit(asked, client, "coded") for _ in range(2)]
        plain = pool.submit(generated, client, "first")
        assert plain.result() == texts["first"]
        assert [one.result().json() for one in coded] == [{"ANSWER": texts["first"]}] * 2
    refused = asked(client, "first")
    assert refused.status_code == 424
    assert "inputs: required" in refused.json()["error"]


def test_formatters_come_change_and_go_with_their_adapter(
    client: httpx.Client, folder: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    source = shutil.copytree(folder / "adapters" / "second", tmp_path / "source")
    (source / "model.py").write_text(CODE)
    assert client.post("/models/demo/adapters", params={"name": "own", "src": str(source)}).status_code == 200
    assert asked(client, "own").json() == {"ANSWER": texts["second"]}
    (source / "model.py").write_text(CODE.replace("ANSWER", "ANOTHER"))
    assert client.post("/models/demo/adapters/own/update").status_code == 200
    assert asked(client, "own").json() == {"ANOTHER": texts["second"]}
    (source / "model.py").write_text("import no_such_module\n")
    faulty = client.post("/models/demo/adapters/own/update")
    told = f"adapter own: {source}/model.py: ModuleNotFoundError: No module named 'no_such_module'"
    assert (faulty.status_code, faulty.json()["message"]) == (424, told)
    assert asked(client, "own").json() == {"ANOTHER": texts["second"]}
    assert client.delete("/models/demo/adapters/own").status_code == 200
    assert "there is no adapter own" in asked(client, "own").text

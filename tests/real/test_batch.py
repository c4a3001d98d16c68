"""A file of requests to trained weights: by the command, and by a server beside interactive requests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from djl_python.testing import RunningServer, running_server
from tests.batch.inputs import ids, read, write

pytestmark = pytest.mark.slow

COUNTRIES = ("France", "Italy", "Japan", "Spain", "Germany")


@pytest.fixture(scope="module")
def model(smol: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch") / "smol"
    folder.mkdir()
    for file in smol.iterdir():
        (folder / file.name).symlink_to(file)
    settings = "option.rolling_batch=auto\noption.max_rolling_batch_size=4\noption.max_model_len=512\n"
    (folder / "serving.properties").write_text(settings)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    environment = {"SERVING_BATCH_DIRECTORY": str(tmp_path_factory.mktemp("batches"))}
    with running_server("-m", f"smol={model}", environment=environment, start_timeout_s=300) as running:
        yield running


def chat(country: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"What is the capital of {country}?"}]
    return {"model": "smol", "messages": messages, "max_tokens": 16, "temperature": 0, **fields}


def line(country: str) -> dict[str, Any]:
    return {"custom_id": country, "method": "POST", "url": "/v1/chat/completions", "body": chat(country)}


def said(result: Any) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def answer_of(client: OpenAI, country: str) -> str:
    return str(client.chat.completions.create(**chat(country)).choices[0].message.content)


def test_the_command_gives_what_the_server_gives(server: RunningServer, model: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", *map(line, COUNTRIES)), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "djl_python", "batch", "-m", f"smol={model}", str(source), str(output)]
    subprocess.run(command, check=True, timeout=300)
    assert ids(output) == list(COUNTRIES)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    assert list(map(said, read(output))) == [answer_of(client, country) for country in COUNTRIES]
    assert "Paris" in said(read(output)[0])


def test_a_batch_beside_interactive_requests(server: RunningServer) -> None:
    """Chats are answered while hundreds of a batch's wait."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    lines = [{**line(country), "custom_id": f"{country} {number}"} for country in COUNTRIES for number in range(40)]
    content = "".join(json.dumps(one) + "\n" for one in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    answers = {country: answer_of(client, country) for country in COUNTRIES}
    assert client.batches.retrieve(batch.id).status in ("validating", "in_progress")
    deadline_s = time.monotonic() + 300
    while (batch := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert batch.output_file_id is not None
    results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert [one["custom_id"] for one in results] == [one["custom_id"] for one in lines]
    assert all(said(one) == answers[one["custom_id"].split()[0]] for one in results)

"""Adapters of a busy server, which is told of them by TGI's variable: one runs at a time, four sequences at once."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM, AutoTokenizer

from djl_python.testing import RunningServer, running_server
from tests.adapters import merge_, write_adapter
from tests.conftest import DEMO

PROMPT: Final = "What is deep learning?"
TOKENS: Final = 24
NAMES: Final = ("first", "second")
SETTINGS: Final = f"""
option.model_id={DEMO}
option.dtype=fp32
option.threads=1
option.max_loras=1
option.max_rolling_batch_size=4
job_queue_size=1000
"""
#: Formatters of an adapter that say whose they are.
CODE: Final = """
from djl_python.output_formatter import output_formatter

@output_formatter
def write(response_data: dict) -> dict:
    return {"%s": response_data.get("generated_text")}
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {name: write_adapter(folder / name, DEMO, seed=len(name), rank=16, scale=0.3) for name in NAMES}


@pytest.fixture(scope="module")
def server(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("busy")
    (folder / "serving.properties").write_text(SETTINGS)
    named = ",".join(f"{name}={path}" for name, path in sources.items())
    with running_server("-m", f"demo={folder}", environment={"LORA_ADAPTERS": named}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=server.url, timeout=300, limits=limits) as made:
        yield made


@pytest.fixture(scope="module")
def texts(sources: dict[str, Path]) -> dict[str, str]:
    """What transformers generates, with each adapter merged into the weights."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    ids, outputs = torch.tensor([tokenizer.encode(PROMPT)]), {}
    for name, path in sources.items():
        model: Any = merge_(AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32), path)
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        text = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        outputs[name] = text.rstrip("\N{REPLACEMENT CHARACTER}")  # bytes of a character that its last token leaves open
    assert len(set(outputs.values())) == len(NAMES)
    return outputs


def body(adapter: str, tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    return {"inputs": PROMPT, "parameters": {"max_new_tokens": tokens}, "adapters": adapter, **more}


def samples(client: httpx.Client, family: str) -> dict[tuple[str, str], float]:
    """The values of an adapters' metric, by (adapter, state)."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.labels["adapter"], sample.labels.get("state", "")): sample.value
        for one in families
        if one.name == family
        for sample in one.samples
    }


def test_tgis_variable_names_adapters(client: httpx.Client, texts: dict[str, str]) -> None:
    for name in NAMES:
        asked = {"inputs": PROMPT, "parameters": {"adapter_id": name, "max_new_tokens": TOKENS}}
        answer = client.post("/generate", json=asked)
        assert (answer.status_code, answer.json().get("generated_text")) == (200, texts[name])
    wrong = client.post("/generate", json={"inputs": PROMPT, "parameters": {"adapter_id": "third"}})
    assert wrong.status_code == 422
    assert "there is no adapter third; expected one of first, second" in wrong.text


def test_metrics_tell_of_each_adapter(client: httpx.Client) -> None:
    """While each has requests, one of them runs and the other waits for the only slot. Engines tell every 5 s."""
    stop = threading.Event()

    def keep_asking(name: str) -> int:
        asked = 0
        while not stop.is_set():
            assert client.post("/invocations", json=body(name, 100)).status_code == 200
            asked += 1
        return asked

    states: set[tuple[str, str]] = set()
    deadline_s = time.monotonic() + 240
    with ThreadPoolExecutor(4) as pool:
        askers = [pool.submit(keep_asking, name) for name in NAMES * 2]
        while not states >= set(itertools.product(NAMES, ("running", "waiting"))) and time.monotonic() < deadline_s:
            told = samples(client, "engine_adapter_sequences")
            states |= {key for key, value in told.items() if value}
            assert not (told and all(told[name, "running"] for name in NAMES))
            stop.wait(0.5)
        stop.set()
        assert all(asker.result() for asker in askers)
    assert states == set(itertools.product(NAMES, ("running", "waiting")))
    assert sum(samples(client, "engine_adapter_in_slot").values()) == 1
    memory = re.search(r"^engine_adapter_memory_bytes(?:{.*})? (.*)$", client.get("/metrics").text, re.MULTILINE)
    assert memory is not None and float(memory[1]) > 200_000


def test_a_flood_of_one_adapter_leaves_others_their_turn(client: httpx.Client, texts: dict[str, str]) -> None:
    """The flood's requests before and behind another adapter's request could all run without a change of adapters."""
    ended: list[str] = []
    lock = threading.Lock()

    def ask(name: str) -> None:
        answer = client.post("/invocations", json=body(name))
        assert answer.json() == {"generated_text": texts[name]}
        with lock:
            ended.append(name)

    with ThreadPoolExecutor(61) as pool:
        flood = [pool.submit(ask, "first") for _ in range(30)]
        flood[0].result()
        single = pool.submit(ask, "second")
        flood += [pool.submit(ask, "first") for _ in range(30)]
        for one in (single, *flood):
            one.result()
    assert Counter(ended) == {"first": 60, "second": 1}
    assert ended.index("second") < 59


def test_nothing_is_lost_while_adapters_are_replaced_and_removed(
    client: httpx.Client, sources: dict[str, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    """Each request has one end; its texts and their form are those of one version, also where its prompts take turns.
    None but a removed one is refused.
    """
    versions = {}
    for name in NAMES:
        versions[name] = shutil.copytree(sources[name], tmp_path / name)
        (versions[name] / "model.py").write_text(CODE % name)
    route = "/models/demo/adapters"
    assert client.post(route, params={"name": "moving", "src": str(versions["first"])}).status_code == 200
    ledger: list[tuple[int, str, str]] = []
    lock, stop = threading.Lock(), threading.Event()
    sent = itertools.count()

    def ask() -> None:
        while not stop.is_set():
            turn = next(sent)
            streams, prompts = turn % 3 == 0, [PROMPT] * 6
            asked = body("moving", stream=streams) | ({"inputs": prompts} if turn % 6 == 1 else {})
            answer = client.post("/invocations", json=asked)
            form, text = "refused", answer.text
            if answer.status_code == 200 and streams:
                lines = [json.loads(line) for line in answer.text.splitlines()]
                (form,) = {name for line in lines for name in line}
                text = lines[-1][form] or ""
            elif answer.status_code == 200:
                made = answer.json()
                ((form, text),) = {pair for one in (made if isinstance(made, list) else [made]) for pair in one.items()}
            with lock:
                ledger.append((answer.status_code, form, text))

    with ThreadPoolExecutor(6) as pool:
        askers = [pool.submit(ask) for _ in range(6)]
        for turn in range(6):
            name = NAMES[(turn + 1) % 2]
            before = len(ledger)
            updated = client.post(f"{route}/moving/update", params={"src": str(versions[name])})
            assert updated.status_code == 200, updated.text
            assert client.post("/invocations", json=body("moving")).json() == {name: texts[name]}
            while len(ledger) < before + 6:
                stop.wait(0.01)
        replaced = len(ledger)
        assert client.delete(f"{route}/moving").status_code == 200
        assert client.post("/invocations", json=body("moving")).status_code == 424
        added = client.post(route, params={"name": "moving", "src": str(versions["second"])})
        assert added.status_code == 200
        assert client.post("/invocations", json=body("moving")).json() == {"second": texts["second"]}
        stop.set()
        for asker in askers:
            asker.result()
    assert len(ledger) == next(sent)
    for status, form, text in ledger:
        if form == "refused":
            assert status == 424 and "there is no adapter moving" in text
        else:
            assert text == texts[form]
    assert all(status == 200 for status, _, _ in ledger[: replaced - 6])
    assert {form for _, form, _ in ledger} >= set(NAMES)
    assert client.delete(f"{route}/moving").status_code == 200


def engine_of(server: RunningServer) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    (engine,) = (one for one in children if "djl_python.engine" in one.cmdline())
    return engine


@pytest.mark.slow
def test_a_thousand_adapters_cost_memory_only_when_they_are_used(
    server: RunningServer, client: httpx.Client, sources: dict[str, Path], texts: dict[str, str]
) -> None:
    """Their weights would take 220 MiB."""
    engine = engine_of(server)
    assert client.post("/invocations", json=body("first")).status_code == 200
    before, read = engine.memory_full_info().uss, engine.io_counters().read_chars
    route = "/models/demo/adapters"
    for number in range(998):
        source = str(sources[NAMES[number % 2]])
        added = client.post(route, params={"name": f"one{number}", "src": source})
        assert added.status_code == 200, added.text
    assert engine.memory_full_info().uss - before < 50 * 2**20
    size = (sources["first"] / "adapter_model.safetensors").stat().st_size
    assert engine.io_counters().read_chars - read < 998 * size / 4
    full = client.post(route, params={"name": "more", "src": str(sources["first"])})
    assert (full.status_code, full.json()["message"]) == (507, "there are 1000 adapters, and no model has more")
    assert client.get(route, params={"limit": 100}).json()["nextPageToken"] == "100"
    for number in (0, 501, 997):
        assert (
            client.post("/invocations", json=body(f"one{number}")).json()["generated_text"] == texts[NAMES[number % 2]]
        )
    for number in range(998):
        assert client.delete(f"{route}/one{number}").status_code == 200
    assert engine.memory_full_info().uss - before < 50 * 2**20
    assert client.post("/invocations", json=body("second")).json()["generated_text"] == texts["second"]

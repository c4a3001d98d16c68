"""A server whose engine is vLLM, on a CPU, with trained weights: what it answers is what transformers generates."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

from djl_python.testing import RunningServer, running_server
from tests.adapters import merge_, write_adapter
from tests.real.engines import cache_dir, lacking

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"
ADAPTERS = ("first", "second")
CHAT: list[Any] = [{"role": "user", "content": "Name three colors."}]


@pytest.fixture(scope="module")
def model(smol: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of SmolLM2, with adapters."""
    if reason := lacking("vllm"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("smol")
    for file in smol.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "serving.properties").write_text(
        "option.rolling_batch=vllm\noption.engine_fallback=error\noption.dtype=fp32\noption.max_model_len=512\n"
        "option.max_rolling_batch_size=4\noption.enforce_eager=true\noption.model_loading_timeout=900\noption.predict_timeout=600\n"
        "option.seed=1\noption.enable_lora=true\noption.max_loras=3\n"
    )
    for name in ADAPTERS:
        write_adapter(folder / "adapters" / name, smol, seed=len(name))
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    variables = {"SERVING_DOWNLOAD_DIR": str(cache_dir()), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with running_server("-m", f"smol={model}", environment=variables, start_timeout_s=900) as running:
        yield running


@pytest.fixture(scope="module")
def openai(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)


def post(server: RunningServer, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{server.url}/invocations", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def metrics(server: RunningServer) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as response:
        return str(response.read().decode())


def test_greedy_text_is_transformers(server: RunningServer, smol: Path, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(smol, dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    answer = post(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 24, "details": True}})
    generated = [int(one) for one in expected[0, ids.shape[1] :]]
    assert [token["id"] for token in answer["details"]["tokens"]] == generated
    with torch.no_grad():
        scores = model(expected).logits.log_softmax(-1)[0, ids.shape[1] - 1 : -1]
    logprobs = [token["log_prob"] for token in answer["details"]["tokens"]]
    torch.testing.assert_close(torch.tensor(logprobs), scores[range(24), generated], atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def texts(smol: Path, tokenizer: Any, model: Path) -> dict[str, str]:
    """What transformers generates of the prompt, with each adapter merged into the weights; "": without."""
    generated = {}
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    for name in ("", *ADAPTERS):
        weights = AutoModelForCausalLM.from_pretrained(smol, dtype=torch.float32)
        if name:
            merge_(weights, model / "adapters" / name)
        made = weights.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        generated[name] = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    assert len(set(generated.values())) == 3
    return generated


def test_adapters_answer_as_merged_weights_do(server: RunningServer, openai: OpenAI, texts: dict[str, str]) -> None:
    """All at the same time: neighbours without one keep their text."""
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 16}}
    names = ["first", "", "second", "first", ""]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: post(server, {**body, "adapters": name})["generated_text"], names))
    assert answers == [texts[name] for name in names]
    made = openai.completions.create(model="second", prompt=PROMPT, max_tokens=16, temperature=0)
    assert (made.model, made.choices[0].text) == ("second", texts["second"])
    assert [one.id for one in openai.models.list()] == ["smol", *ADAPTERS]


def test_prompts_of_another_salt_are_computed_anew(openai: OpenAI) -> None:
    prompt = PROMPT + " and" * 300
    found = []
    for salt in ("a", "b", "a", "b"):
        made = openai.completions.create(model="smol", prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt})
        assert made.usage is not None and made.usage.prompt_tokens_details is not None
        found.append(made.usage.prompt_tokens_details.cached_tokens or 0)
    assert found[:2] == [0, 0] and min(found[2:]) > 0


def managed(server: RunningServer, method: str, path: str, **parameters: str) -> tuple[int, str]:
    """Status, and what is said."""
    answer = httpx.request(method, f"{server.url}{path}", params=parameters, timeout=600)
    told = answer.json()
    return answer.status_code, told.get("status") or told["message"]


def adapted(server: RunningServer, name: str) -> str:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 16}, "adapters": name}
    return str(post(server, body)["generated_text"])


def test_adapters_come_change_and_go(
    server: RunningServer, model: Path, smol: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    """What one computed is never another's, though they have the same name and the same path."""
    path = tmp_path / "adapter"
    shutil.copytree(model / "adapters" / "first", path)
    assert managed(server, "POST", "/models/smol/adapters", name="new", src=str(path)) == (
        200,
        "Adapter new registered",
    )
    assert adapted(server, "new") == texts["first"]
    shutil.rmtree(path)
    shutil.copytree(model / "adapters" / "second", path)
    assert managed(server, "POST", "/models/smol/adapters/new/update") == (200, "Adapter new updated")
    assert adapted(server, "new") == texts["second"]
    assert adapted(server, "") == texts[""]
    assert managed(server, "DELETE", "/models/smol/adapters/new") == (200, "Adapter new unregistered")
    with pytest.raises(urllib.error.HTTPError):
        adapted(server, "new")


def test_requests_of_an_adapter_that_goes_are_answered(
    server: RunningServer, openai: OpenAI, model: Path, texts: dict[str, str]
) -> None:
    src = str(model / "adapters" / "first")
    assert managed(server, "POST", "/adapters", name="going", src=src)[0] == 200
    stream = openai.completions.create(
        model="going", prompt=PROMPT, max_tokens=300, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    text = next(iter(stream)).choices[0].text
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(managed, server, "DELETE", "/adapters/going")
        chunks = 1
        while "going" in [one.id for one in openai.models.list()]:  # until it is refused
            time.sleep(0.05)
        with pytest.raises(urllib.error.HTTPError):
            adapted(server, "going")
        for chunk in stream:
            chunks += 1
            text += chunk.choices[0].text if chunk.choices else ""
        assert going.result() == (200, "Adapter going unregistered")
    assert text.startswith(texts["first"]) and chunks > 100


def test_an_adapter_that_can_not_be_loaded_costs_nothing(
    server: RunningServer, smol: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    big = write_adapter(tmp_path / "big", smol, seed=1, rank=32)
    told = managed(server, "POST", "/adapters", name="big", src=str(big))
    assert told == (400, "adapter big has rank 32; expected at most option.max_lora_rank=8")
    hollow = write_adapter(tmp_path / "hollow", smol, seed=1)
    (hollow / "adapter_model.safetensors").write_bytes(b"nothing")
    status, said = managed(server, "POST", "/adapters", name="hollow", src=str(hollow))
    assert status == 400 and said.startswith("vLLM does not take the adapter hollow: ")
    third = write_adapter(tmp_path / "third", smol, seed=9)
    assert managed(server, "POST", "/adapters", name="third", src=str(third))[0] == 200
    status, said = managed(server, "POST", "/adapters", name="fourth", src=str(third))
    assert (status, said) == (507, "adapter fourth: there is room for 3 adapters, and they are there; option.max_loras "
                                   "gives them more")  # fmt: skip
    assert managed(server, "DELETE", "/adapters/third")[0] == 200
    assert [adapted(server, name) for name in texts] == list(texts.values())


def test_an_adapter_that_is_not_there_is_refused(server: RunningServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, {"inputs": PROMPT, "adapters": "thrid"})
    assert "there is no adapter thrid; expected one of first, second" in caught.value.read().decode()


def test_a_chat_streams_with_log_probabilities(openai: OpenAI) -> None:
    chunks = list(
        openai.chat.completions.create(
            model="smol", messages=CHAT, max_tokens=30, temperature=0, stream=True, logprobs=True, top_logprobs=2
        )
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert sum(color in "".join(one.delta.content or "" for one in choices).lower() for color in ("red", "blue")) >= 1
    told = [entry for one in choices if one.logprobs for entry in one.logprobs.content or []]
    assert told and all(len(entry.top_logprobs) == 2 for entry in told)
    assert choices[-1].finish_reason in ("stop", "length")


def test_a_seed_repeats_its_draws(server: RunningServer) -> None:
    body: dict[str, Any] = {
        "inputs": PROMPT,
        "parameters": {"max_new_tokens": 16, "do_sample": True, "temperature": 1.5, "seed": 5},
    }
    first, second = post(server, body), post(server, body)
    assert first["generated_text"] == second["generated_text"]
    body["parameters"]["seed"] = 6
    assert post(server, body)["generated_text"] != first["generated_text"]


def test_a_schema_forces_the_answer(openai: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}, "count": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["color", "count"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model="smol",
        messages=CHAT,
        max_tokens=60,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    )
    instance = json.loads(answer.choices[0].message.content or "")
    assert instance["color"] in ("red", "blue") and 0 <= instance["count"] <= 9


def test_stop_and_bad_words_and_bias(server: RunningServer) -> None:
    plain = post(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}})["generated_text"]
    assert "Paris" in plain
    stopped = post(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "stop": ["Paris"], "details": True}})
    assert stopped["details"]["finish_reason"] == "stop_sequence"
    without = post(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "bad_sequences": [" Paris"]}})
    assert "Paris" not in without["generated_text"]


def test_parameters_that_vllm_lacks_are_reported_as_ignored(server: RunningServer) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2, "do_sample": True, "typical_p": 0.5}}
    request = urllib.request.Request(
        f"{server.url}/invocations", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        assert "typical_p" in response.headers["x-ignored-parameters"]


def test_a_closed_stream_is_gone_within_a_step(server: RunningServer, openai: OpenAI) -> None:
    stream = openai.completions.create(model="smol", prompt=PROMPT, max_tokens=400, stream=True, temperature=0)
    next(iter(stream))
    stream.close()
    assert post(server, {"inputs": PROMPT, "parameters": {"max_new_tokens": 4}})["generated_text"]
    (running,) = [line for line in metrics(server).splitlines() if line.startswith("djl_running_requests{")]
    assert float(running.rpartition(" ")[2]) == 0


def test_vllms_own_metrics_are_shown(server: RunningServer) -> None:
    """The last numbers come some seconds after the last step."""
    deadline_s = time.monotonic() + 60
    while True:
        lines = [line for line in metrics(server).splitlines() if line.startswith("vllm:generation_tokens_total{")]
        if lines and float(lines[0].rpartition(" ")[2]) > 0:
            break
        assert time.monotonic() < deadline_s
        time.sleep(1)
    assert 'model="smol"' in lines[0] and 'model_name="smol"' in lines[0] and 'worker="0"' in lines[0]


def test_metrics_name_vllm_as_the_runner(server: RunningServer) -> None:
    (line,) = [line for line in metrics(server).splitlines() if line.startswith("djl_engine_info{")]
    assert 'runner="vllm"' in line and 'dtype="float32"' in line


def test_nothing_of_it_outlives_its_engine(server: RunningServer) -> None:
    """The last test: vLLM's processes end with the engine's, and a new one answers."""
    family = psutil.Process(server.process.pid).children(recursive=True)
    (engine,) = [one for one in family if "djl_python.engine" in one.cmdline()]
    of_vllm = engine.children(recursive=True)
    assert of_vllm
    engine.kill()
    _, alive = psutil.wait_procs(of_vllm, timeout=60)
    assert alive == []

"""DeepSpeed on CPUs, with trained weights: what two processes, or one with its weights elsewhere, answer is what
transformers generates. And small models of many architectures, also those that transformers has no plan for.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.testing import RunningServer, running_server
from tests.checkpoints import build_checkpoint
from tests.engines import Listener, Sink, generate
from tests.real.engines import cache_dir, environment, lacking

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"
CHAT: list[Any] = [{"role": "user", "content": "Name three colors."}]
COMMON = (
    "engine=DeepSpeed\noption.engine_fallback=error\noption.dtype=fp32\noption.device=cpu\noption.max_model_len=512\n"
    "option.max_rolling_batch_size=4\noption.kv_cache_memory_mb=64\noption.threads=2\n"
    "option.model_loading_timeout=1800\noption.predict_timeout=900\n"
)
#: The models of the server, and what their serving.properties say beside that.
MODELS = {
    "divided": "option.tensor_parallel_degree=2\noption.entryPoint=djl_python.deepspeed\n",
    "zero": "option.deepspeed_config_path=ds.json\n",
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if reason := lacking("deepspeed"):
        pytest.skip(reason)


def offload(folder: Path) -> dict[str, Any]:
    """To NVMe, where its extension could be compiled: libaio's headers were there."""
    if (environment("deepspeed") / "extensions" / "async_io" / "async_io.so").is_file():
        return {"device": "nvme", "nvme_path": "nvme", "buffer_count": 2, "max_in_cpu": 0}
    return {"device": "cpu"}


@pytest.fixture(scope="module")
def folders(smol: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, settings in MODELS.items():
        folder = made[name] = tmp_path_factory.mktemp(name)
        for file in smol.iterdir():
            (folder / file.name).symlink_to(file)
        (folder / "serving.properties").write_text(COMMON + settings)
    zero = {"stage": 3, "offload_param": offload(made["zero"]), "stage3_param_persistence_threshold": 0}
    (made["zero"] / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    return made


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    models = [argument for name, folder in folders.items() for argument in ("-m", f"{name}={folder}")]
    variables = {"SERVING_DOWNLOAD_DIR": str(cache_dir())}
    with running_server(*models, environment=variables, start_timeout_s=1800) as running:
        yield running


def post(server: RunningServer, model: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{server.url}/predictions/{model}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=900) as response:
        return json.load(response)


@pytest.mark.parametrize("model", MODELS)
def test_greedy_text_is_transformers(model: str, server: RunningServer, smol: Path, tokenizer: Any) -> None:
    own = AutoModelForCausalLM.from_pretrained(smol, dtype=torch.float32)
    prompt = tokenizer.encode(PROMPT)
    generated = generate(own, prompt, 24)
    answer = post(server, model, {"inputs": PROMPT, "parameters": {"max_new_tokens": 24, "details": True}})
    assert [token["id"] for token in answer["details"]["tokens"]] == generated
    with torch.no_grad():
        scores = own(torch.tensor([prompt + generated])).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    logprobs = [token["log_prob"] for token in answer["details"]["tokens"]]
    torch.testing.assert_close(torch.tensor(logprobs), scores[range(24), generated], atol=1e-4, rtol=0)


def test_a_chat_streams_and_a_schema_forces_an_answer(server: RunningServer) -> None:
    """Sampling, grammars and text are the built-in batch's."""
    openai = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=900)
    chunks = list(
        openai.chat.completions.create(
            model="divided", messages=CHAT, max_tokens=20, temperature=0.7, seed=1, stream=True
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    schema: Any = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
    answer = openai.chat.completions.create(
        model="divided",
        messages=CHAT,
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "")["color"] in ("red", "blue")


def test_metrics_name_deepspeed_as_the_runner(server: RunningServer) -> None:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as response:
        lines = [line for line in response.read().decode().splitlines() if line.startswith("djl_engine_info{")]
    assert len(lines) == len(MODELS) and all('runner="deepspeed"' in line for line in lines)


def test_weights_offloaded_to_nvme_are_in_the_models_folder(folders: dict[str, Path], server: RunningServer) -> None:
    if offload(folders["zero"])["device"] != "nvme":
        pytest.skip("libaio's headers are not here: nothing was offloaded to NVMe")
    (folder,) = (folders["zero"] / "nvme").iterdir()
    held = sum(file.stat().st_size for file in folder.rglob("*.swp"))
    assert held > 400 << 20  # of 513 MiB


def test_all_ranks_end_when_one_dies_and_the_model_comes_back(server: RunningServer) -> None:
    """The last test of the server."""
    family = psutil.Process(server.process.pid).children(recursive=True)
    (rank,) = [one for one in family if "djl_python.engine.parallel.rank" in one.cmdline()]
    engine = rank.parent()
    assert engine is not None
    rank.kill()
    _, alive = psutil.wait_procs([rank, engine], timeout=120)
    assert alive == []


ARCHITECTURES = {
    # transformers has no plan for them, and DeepSpeed divides them
    "opt": "",
    "mpt": "",
    # DeepSpeed can't divide them: ALiBi, convolutions beside attention, and a state
    "lfm2": "DeepSpeed's tensor parallelism can't be used for Lfm2ForCausalLM: ",
    "bloom": "DeepSpeed's tensor parallelism can't be used for BloomForCausalLM: ",
    "mamba": "DeepSpeed's tensor parallelism can't be used for MambaForCausalLM: ",
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_two_processes_have_the_logits_of_one(architecture: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, architecture)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    client = await Listener().open(
        path,
        rolling_batch="deepspeed",
        cache_dir=str(cache_dir()),
        device="cpu",
        dtype="fp32",
        tensor_parallel_degree=2,
        engine_options={"threads": 2, "kv_cache_memory_mb": 16},
    )
    assert client.limits.info.offloaded.startswith(ARCHITECTURES[architecture])
    assert bool(client.limits.info.offloaded) == bool(ARCHITECTURES[architecture])
    prompts = [[5, 6, 7, 8, 9] * 6, [9, 8, 7]]
    sinks = [Sink() for _ in prompts]
    for prompt, sink in zip(prompts, sinks, strict=True):
        client.submit(
            SequenceRequest(prompt, SamplingParams(max_new_tokens=8, ignore_eos=True, prompt_logprobs=0)), sink
        )
    for prompt, sink in zip(prompts, sinks, strict=True):
        assert_own(model, prompt, await asyncio.wait_for(sink.end(), 600))
    await client.close()


def assert_own(model: Any, prompt: list[int], events: list[TokenEvent]) -> None:
    """The tokens are the model's choices, with its log-probabilities, and so are those of the prompt."""
    ids = [event.token_id for event in events]
    with torch.no_grad():
        scores = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
    assert ids == [int(one) for one in scores[len(prompt) - 1 : -1].argmax(-1)]
    logprobs = [score for score, _ in events[0].prompt if score is not None]
    logprobs += [event.logprob for event in events if event.logprob is not None]
    wanted = scores[:-1].gather(1, torch.tensor([prompt + ids])[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs), wanted, atol=1e-4, rtol=0)

"""Images through vLLM, on a CPU: what it answers is what vLLM answers alone, and what transformers generates."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL.Image import Image
from transformers import AutoModelForImageTextToText

from djl_python.testing import RunningServer, running_server
from tests.real.engines import cache_dir, environment, lacking
from tests.vision_checkpoints import build_vision_checkpoint, data_url, picture

pytestmark = pytest.mark.slow

ARCHITECTURE = "idefics3"  # of the small ones, the one whose code in vLLM needs no torchvision
IMAGES = {"one": [picture(1, 47, 30)], "two": [picture(1, 47, 30), picture(2, 54, 30)]}
TOKENS = 8
#: vLLM without this server: a prompt with its images in, ids out.
ALONE = """
import json, sys
from PIL import Image
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=512, max_num_seqs=2, enforce_eager=True, seed=1)
    sampling = SamplingParams(temperature=0, max_tokens=int(sys.argv[2]))
    for text, files in json.loads(sys.argv[3]):
        prompt = {"prompt": text, "multi_modal_data": {"image": [Image.open(file).convert("RGB") for file in files]}}
        (made,) = llm.generate([prompt], sampling)
        print("IDS", json.dumps(list(made.outputs[0].token_ids)))
"""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model directory, and the model's processor."""
    if reason := lacking("vllm"):
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("sees")
    processor = build_vision_checkpoint(path, ARCHITECTURE, head_dim=32)  # vLLM has no smaller heads on CPUs
    (path / "serving.properties").write_text(
        "option.rolling_batch=vllm\noption.engine_fallback=error\noption.dtype=fp32\noption.max_model_len=512\n"
        "option.max_rolling_batch_size=2\noption.enforce_eager=true\noption.model_loading_timeout=900\n"
        'option.predict_timeout=600\noption.limit_mm_per_prompt={"image": 2}\n'
    )
    return path, processor


@pytest.fixture(scope="module")
def server(model: tuple[Path, Any]) -> Iterator[RunningServer]:
    variables = {"SERVING_DOWNLOAD_DIR": str(cache_dir()), **ENVIRONMENT}
    with running_server("-m", f"sees={model[0]}", environment=variables, start_timeout_s=900) as running:
        yield running


def body(images: list[Image], text: str = "What?", **further: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    message = {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
    return {"messages": [message], "max_tokens": TOKENS, "temperature": 0, **further}


def ask(server: RunningServer, sent: dict[str, Any], path: str = "/v1/chat/completions") -> Any:
    answer = httpx.post(f"{server.url}{path}", json=sent, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_of(answer: Any, processor: Any) -> list[int]:
    """The generated ids: each token of this tokenizer is one byte."""
    names = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
    own = [entry["bytes"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert len(names) == TOKENS
    alphabet = {bytes(one): number for number, one in _alphabet(processor).items()}
    return [alphabet[bytes(one)] for one in own]


def _alphabet(processor: Any) -> dict[int, bytes]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = {letter: bytes([byte]) for byte, letter in bytes_to_unicode().items()}
    return {number: letters[token] for token, number in processor.tokenizer.get_vocab().items() if token in letters}


def written(processor: Any, count: int) -> str:
    content = [*[{"type": "image"}] * count, {"type": "text", "text": "What?"}]
    messages = [{"role": "user", "content": content}]
    return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


@pytest.fixture(scope="module")
def answers(server: RunningServer) -> dict[str, Any]:
    return {name: ask(server, body(images, logprobs=True)) for name, images in IMAGES.items()}


def test_greedy_ids_are_transformers(model: tuple[Path, Any], answers: dict[str, Any]) -> None:
    path, processor = model
    reference = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    for name, images in IMAGES.items():
        text = written(processor, len(images))
        inputs = processor(text=[text], images=[images], add_special_tokens=False, return_tensors="pt")
        made = reference.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        prompt = inputs["input_ids"].shape[1]
        assert ids_of(answers[name], processor) == made[0, prompt:].tolist()
        assert answers[name]["usage"]["prompt_tokens"] == prompt


def test_greedy_ids_are_vllms_alone(model: tuple[Path, Any], answers: dict[str, Any], tmp_path: Path) -> None:
    path, processor = model
    asked = []
    for name, images in IMAGES.items():
        files = [tmp_path / f"{name}{number}.png" for number in range(len(images))]
        for image, file in zip(images, files, strict=True):
            image.save(file)
        asked.append((written(processor, len(images)), list(map(str, files))))
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    done = subprocess.run(
        [str(environment("vllm") / "bin" / "python"), str(script), str(path), str(TOKENS), json.dumps(asked)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "VLLM_NO_USAGE_STATS": "1", **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    alone = [json.loads(line.removeprefix("IDS")) for line in done.stdout.splitlines() if line.startswith("IDS")]
    assert [ids_of(answers[name], processor) for name in IMAGES] == alone


def test_an_image_changes_the_answer_and_the_cache_does_not(server: RunningServer, answers: dict[str, Any]) -> None:
    other = ask(server, body([picture(3, 47, 30)], logprobs=True))
    assert other["choices"][0]["logprobs"] != answers["one"]["choices"][0]["logprobs"]
    again = ask(server, body(IMAGES["one"], logprobs=True))
    assert [entry["bytes"] for entry in again["choices"][0]["logprobs"]["content"]] == [
        entry["bytes"] for entry in answers["one"]["choices"][0]["logprobs"]["content"]
    ]


def test_several_sequences_and_beams_see_it(server: RunningServer, answers: dict[str, Any]) -> None:
    several = ask(server, body(IMAGES["one"], n=2, temperature=1.0, seed=3))
    assert len(several["choices"]) == 2
    beams = {"num_beams": 2, "max_new_tokens": TOKENS}
    best = ask(server, {**body(IMAGES["one"]), "parameters": beams}, "/invocations")
    assert best["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("sent", "told", "param"),
    [
        (body([picture(1)] * 3), "expected at most 2 images, got 3", "messages[0].content[2].image_url.url"),
        (body([picture(1)], text="<image>"), "must not have the model's token for an image", None),
        (body([picture(1)], text="x" * 600), "maximum context length is 512 tokens", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
            "not an image in one of the formats",
            "messages[0].content[0].image_url.url",
        ),
    ],
)
def test_a_wrong_image_is_refused_with_its_field(
    server: RunningServer, sent: dict[str, Any], told: str, param: str | None
) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=sent, timeout=600)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"] and answer.json()["error"]["param"] == param

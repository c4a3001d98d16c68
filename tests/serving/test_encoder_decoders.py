"""An encoder-decoder model under continuous batching, from a real server: LMI's, TGI's and OpenAI's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from djl_python.testing import RunningServer, running_server
from tests.encoder_decoders import LACKING
from tests.pipelines.encoders import WORDS, build_translator
from tests.serving.client import ask, until_quiet

pytestmark = pytest.mark.skipif(bool(LACKING), reason="this release of transformers has another T5")

TEXTS = ["the cat sat on a mat", "two birds", "who saw it where the cat and two birds sat"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_translator(tmp_path_factory.mktemp("models") / "rewriter", initializer_factor=6.0)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[RunningServer]:
    with running_server("-m", f"rewriter={path}", start_timeout_s=240) as running:
        yield running


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    """What transformers makes of a text."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)

    def text_of(text: str, new_tokens: int, **options: Any) -> str:
        read = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(
                read.input_ids, attention_mask=read.attention_mask, max_new_tokens=new_tokens, **options
            )
        text_made: str = tokenizer.decode(made[0], skip_special_tokens=True)
        return text_made

    return text_of


def post(server: RunningServer, route: str, body: Any) -> Any:
    response = httpx.post(f"{server.url}{route}", json=body, timeout=120)
    assert response.status_code == 200, (response.text, server.output())
    return response.json()


def test_lmis_requests_one_text_and_several(server: RunningServer, reference: Any) -> None:
    expected = [reference(text, 9) for text in TEXTS]
    assert len({*expected}) > 1
    parameters = {"max_new_tokens": 9}
    one = post(server, "/invocations", {"inputs": TEXTS[0], "parameters": parameters | {"details": True}})
    assert one["generated_text"] == expected[0]
    assert "".join(token["text"] for token in one["details"]["tokens"]) == expected[0]
    several = post(server, "/invocations", {"inputs": TEXTS, "parameters": parameters})
    assert [each["generated_text"] for each in several] == expected


@pytest.mark.parametrize("length_penalty", [1.0, 2.0])
def test_beams_are_those_of_transformers(server: RunningServer, reference: Any, length_penalty: float) -> None:
    body = {"parameters": {"max_new_tokens": 12, "num_beams": 3, "length_penalty": length_penalty}}
    for text in TEXTS:
        expected = reference(text, 12, num_beams=3, length_penalty=length_penalty)
        assert post(server, "/invocations", {"inputs": text, **body})["generated_text"] == expected


def test_tgis_requests_whole_and_streamed(server: RunningServer, reference: Any) -> None:
    body = {"inputs": TEXTS[2], "parameters": {"max_new_tokens": 9, "details": True}}
    whole = post(server, "/generate", body)
    assert whole["generated_text"] == reference(TEXTS[2], 9)
    streamed = httpx.post(f"{server.url}/generate_stream", json=body, timeout=120)
    lines = [line for line in streamed.text.splitlines() if line.startswith("data:")]
    assert len(lines) == whole["details"]["generated_tokens"]
    refused = body | {"parameters": {"max_new_tokens": 2, "details": True, "decoder_input_details": True}}
    response = httpx.post(f"{server.url}/generate", json=refused, timeout=120)
    assert response.status_code == 422 and "prompt_logprobs" in response.text


def test_openais_completions_count_what_the_encoder_reads_and_chats_are_refused(
    server: RunningServer, reference: Any
) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    made = client.completions.create(model="rewriter", prompt=TEXTS[1], max_tokens=7, temperature=0, n=1)
    assert made.choices[0].text == reference(TEXTS[1], 7)
    assert made.usage is not None and made.usage.prompt_tokens == len(TEXTS[1].split()) + 2
    several = client.completions.create(model="rewriter", prompt=TEXTS[1], max_tokens=7, temperature=1, n=3, seed=4)
    assert len(several.choices) == 3
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model="rewriter", messages=[{"role": "user", "content": "hi"}])


def test_a_stop_sequence_ends_a_text(server: RunningServer, reference: Any) -> None:
    words = reference(TEXTS[0], 9).split()
    assert len(words) > 2 and {*words} <= {*WORDS}
    body = {"inputs": TEXTS[0], "parameters": {"max_new_tokens": 9, "stop_sequences": [words[1]], "details": True}}
    made = post(server, "/invocations", body)
    assert made["details"]["finish_reason"] == "stop_sequence"


async def test_a_client_that_leaves_frees_its_blocks(server: RunningServer) -> None:
    body = {
        "inputs": TEXTS[0],
        "parameters": {"max_new_tokens": 1900, "ignore_eos_token": True},
        "stream": True,
    }
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(ask(session, f"{server.url}/invocations", body, leave_after_pieces=3) for _ in range(3)))
        await until_quiet(session, server.url)

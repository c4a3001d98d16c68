"""Beam search of a model whose decoder begins and ends with forced tokens gives what transformers' generate gives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from djl_python.core.types import Branching, Delta, GenerateRequest, SamplingParams
from djl_python.engine.client import EngineClient
from djl_python.handlers.text_generation import TextGenerationHandler
from tests.encoder_decoders import EOS as EOS_ID
from tests.encoder_decoders import build_encoder_decoder, generate, reference_of
from tests.handlers.harness import BYTES, EOS, Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = [list(range(20, 60)), [15, 19, 200, 33]]
NEW_TOKENS = 9


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_encoder_decoder(tmp_path_factory.mktemp("mbart"), "mbart", forced_eos_token_id=EOS_ID)
    BYTES.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(checkpoint: Path) -> AsyncIterator[Served]:
    made = Served(checkpoint)
    made.handler = TextGenerationHandler(EngineClient.open)
    await made.load(threads=1, max_rolling_batch_size=8, block_size=4, dtype="fp32")
    yield made
    await made.handler.close()


@pytest.mark.parametrize("length_penalty", [1.0, 3.0, -2.0])
async def test_equals_generate(served: Served, checkpoint: Path, length_penalty: float) -> None:
    model, ends = reference_of(checkpoint), list(range(100, 200))
    for prompt in PROMPTS:
        request = GenerateRequest(
            prompt=tuple(prompt),
            sampling=SamplingParams(max_new_tokens=NEW_TOKENS, stop_token_ids=tuple(ends)),
            branching=Branching(n=3, num_beams=3, length_penalty=length_penalty),
        )
        task, reply = served.call("plain", "generate", {"requests": [request]})
        await task
        ids: list[list[int]] = [[], [], []]
        for line in reply.body.splitlines():
            delta = msgspec.json.decode(line, type=Delta)
            ids[delta.choice] += [token.id for token in delta.tokens]
        expected = generate(
            model, prompt, NEW_TOKENS, num_beams=3, num_return_sequences=3, length_penalty=length_penalty,
            eos_token_id=[EOS_ID, *ends], pad_token_id=0,
        )  # fmt: skip
        rows = [row[2:] for row in expected.sequences.tolist()]
        stops = [next((at for at, token in enumerate(row, 1) if token in (EOS_ID, *ends)), len(row)) for row in rows]
        assert ids == [row[:stop] for row, stop in zip(rows, stops, strict=True)]

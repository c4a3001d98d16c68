"""The engine over the tests' TensorRT-LLM: what it tells is what transformers generates. Untested on hardware."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from djl_python.core.errors import GenerationError, ModelLoadError, ParameterError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, Grammar, SamplingParams, TokenEvent
from djl_python.engine.interface import AsyncEngine
from djl_python.engine.trtllm.arguments import TrtllmOptions, TrtllmSettings
from tests.checkpoints import VOCABULARY, build_checkpoint
from tests.engine.trtllm.conftest import FAKE
from tests.engines import generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = [5, 9, 17, 4]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


async def opened(path: Path, **settings: Any) -> AsyncEngine:
    engine = importlib.import_module("djl_python.engine.trtllm.engine").TrtllmEngine
    made: AsyncEngine = await engine.open(TrtllmSettings(model_path=str(path), **settings), lambda *told: None)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[AsyncEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FAKE))
        made = await opened(checkpoint, max_model_len=64, max_batch_size=2)
        yield made
        await made.close()


async def events(engine: AsyncEngine, **sampling: Any) -> list[TokenEvent]:
    params = SamplingParams(**{"max_new_tokens": 8, **sampling})
    return [event async for event in engine.generate(SequenceRequest(PROMPT, params, id=1))]


async def test_trtllm_generates_what_transformers_does(engine: AsyncEngine, checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokens = await events(engine, top_logprobs=2)
    ids = [event.token_id for event in tokens]
    assert ids == generate(model, PROMPT, 8)[: len(ids)]
    with torch.inference_mode():
        scores = model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    torch.testing.assert_close(
        torch.tensor([event.logprob for event in tokens]), scores[range(len(ids)), ids], atol=1e-4, rtol=0
    )
    assert all(event.top[0][0] == event.token_id for event in tokens)
    assert engine.stats.running == 0


async def test_trtllm_reports_its_version_and_limits(engine: AsyncEngine) -> None:
    assert engine.description == "TensorRT-LLM 1.2.1, untested on hardware: trtllm, auto, cuda"
    assert (engine.max_model_len, engine.max_batch_size, engine.vocabulary) == (64, 2, VOCABULARY)


async def test_a_bias_moves_a_token_up(engine: AsyncEngine) -> None:
    tokens = await events(engine, logit_bias={11: 100.0}, ignore_eos=True)
    assert {event.token_id for event in tokens} == {11}


async def test_a_stop_token_is_told(engine: AsyncEngine) -> None:
    first = (await events(engine, ignore_eos=True))[0].token_id
    tokens = await events(engine, stop_token_ids=(first,), ignore_eos=True)
    assert [(event.token_id, event.finish) for event in tokens] == [(first, FinishReason.STOP)]


async def test_a_salt_reaches_trtllm(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = importlib.import_module("tensorrt_llm.llmapi").LLM
    salts: list[str | None] = []
    generate = llm.generate_async

    def noted(self: Any, *arguments: Any, cache_salt: str | None = None, **more: Any) -> Any:
        salts.append(cache_salt)
        return generate(self, *arguments, cache_salt=cache_salt, **more)

    monkeypatch.setattr(llm, "generate_async", noted)
    for number, salt in enumerate(("", "a")):
        request = SequenceRequest(PROMPT, SamplingParams(max_new_tokens=1), id=number, cache_salt=salt)
        async for _ in engine.generate(request):
            pass
    assert salts == [None, "a"]


async def test_a_closed_generation_is_aborted(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    output = importlib.import_module("tensorrt_llm.llmapi").RequestOutput
    aborted: list[Any] = []
    abort = output.abort

    def noted(result: Any) -> None:
        aborted.append(result)
        abort(result)

    monkeypatch.setattr(output, "abort", noted)
    generated = engine.generate(SequenceRequest(PROMPT, SamplingParams(max_new_tokens=50, ignore_eos=True), id=1))
    await anext(generated)
    assert engine.stats.running == 1
    await generated.aclose()
    assert engine.stats.running == 0
    assert len(aborted) == 1


async def test_a_request_that_fails_is_an_error_of_its_own(engine: AsyncEngine) -> None:
    with pytest.raises(GenerationError, match="has no grammars"):
        await events(engine, grammar=Grammar("regex", "a+"))
    with pytest.raises(ParameterError, match="expected 1 to 63"):
        async for _ in engine.generate(SequenceRequest([5] * 64, SamplingParams(max_new_tokens=1), id=1)):
            pass
    assert len(await events(engine, ignore_eos=True)) == 8


async def test_the_end_of_its_processes_is_its_own(engine: AsyncEngine) -> None:
    with pytest.raises(RuntimeError, match="shutting down"):
        engine.isolate(RuntimeError("LLM is shutting down"))


@pytest.mark.usefixtures("pretended")
async def test_trtllms_refusals_are_passed_on(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"does not take an option: there is no config\.json"):
        await opened(tmp_path)
    short = await opened(checkpoint, own=TrtllmOptions(max_output_len=32), properties={"max_num_tokens": "7"})
    try:
        assert short.max_model_len == 32
    finally:
        await short.close()

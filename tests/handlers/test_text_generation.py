"""The built-in handler, over an engine whose steps the test makes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.core.engine_info import EngineStats
from djl_python.core.errors import GenerationError, ModelLoadError, ParameterError, PayloadError
from djl_python.core.metrics import MetricFamily, MetricSample
from djl_python.core.turns.precedence import Precedence
from djl_python.handlers.text_generation import TextGenerationHandler
from djl_python.text.tokens.tokenizer import FastBackend
from tests.handlers.conftest import Watch
from tests.handlers.harness import LIMITS, Served, byte_tokenizer, ids

# ------------------------------------------------------------------------------------------------ answers


async def test_an_answer_has_its_text_and_details(served: Served) -> None:
    reply = await served.answer("hi", details=True)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert len(reply.pieces) == 1
    answer = json.loads(reply.body)
    assert answer["generated_text"] == " HI"
    assert answer["details"]["finish_reason"] == "eos_token"
    assert answer["details"]["generated_tokens"] == 4
    assert [token["text"] for token in answer["details"]["tokens"]] == [" ", "H", "I", ""]
    assert served.engine.cancelled == []


async def test_a_stream_is_the_same_text(served: Served) -> None:
    served.engine.reply_to = lambda prompt: "Straße 👩‍👩‍👧 日本 END more"
    for parameters in ({}, {"stop_sequences": ["END", "zzz"]}, {"max_new_tokens": 9}):
        whole = json.loads((await served.answer("x", **parameters)).body)["generated_text"]
        reply = await served.answer("x", stream=True, **parameters)
        lines = reply.lines()
        assert lines[-1]["generated_text"] == whole == "".join(line["token"]["text"] for line in lines)
        assert all("\ufffd" not in line["token"]["text"] for line in lines[:-1])
        assert "END" not in whole or not parameters.get("stop_sequences")


async def test_a_stop_sequence_ends_the_sequence_in_the_engine(served: Served) -> None:
    served.engine.reply_to = lambda prompt: "one STOP two"
    reply = await served.answer("x", stream=True, stop_sequences=["STOP"], details=True)
    assert reply.lines()[-1]["details"]["finish_reason"] == "stop_sequence"
    assert reply.lines()[-1]["generated_text"] == "one "
    assert served.engine.cancelled == [1]


async def test_a_stream_starts_with_its_first_token(served: Served) -> None:
    task, reply = served.ask("hi", stream=True)
    await served.submitted()
    assert not reply.started
    served.engine.step()
    assert reply.started
    assert reply.lines() == [{"token": {"id": ids(" ")[0], "text": " ", "log_prob": -0.5}}]
    await served.engine.run()
    await task


async def test_many_at_once(served: Served) -> None:
    asked = [served.ask(f"prompt {n}", stream=n % 2 == 0, max_new_tokens=50) for n in range(20)]
    await served.submitted(20)
    await served.engine.run()
    await asyncio.gather(*(task for task, _ in asked))
    for n, (_, reply) in enumerate(asked):
        assert reply.lines()[-1]["generated_text"] == f" PROMPT {n}"


async def test_capacity_keeps_the_batch_full(served: Served) -> None:
    assert served.handler.capacity == 8


# ------------------------------------------------------------------------------------------------ requests


async def test_sampling_reaches_the_engine(served: Served) -> None:
    await served.answer("x", do_sample=True, temperature=0.5, seed=9, bad_sequences=["no"], max_new_tokens=7)
    sampling = served.engine.sampling[1]
    assert (sampling.temperature, sampling.seed, sampling.max_new_tokens) == (0.5, 9, 7)
    assert tuple(ids("no")) in sampling.bad_words_ids
    assert tuple(ids(" no")) in sampling.bad_words_ids


@pytest.mark.parametrize(("scope", "kinds"), [("tenant", 6), ("model", 2)])
async def test_prompts_share_the_prefix_cache_within_a_tenant_and_a_salt(
    model_dir: Path, scope: Any, kinds: int
) -> None:
    served = await Served(model_dir).load(prefix_cache_scope=scope)
    asked = [(tenant, salt) for tenant in ("", "a", "ab") for salt in (None, "b")]
    for tenant, salt in 2 * asked:
        body = {"inputs": "x", "parameters": {"cache_salt": salt}}
        await served.ended(*served.call("lmi", "predict", body, precedence=Precedence(tenant)))
    salts = served.engine.salts
    assert salts[:6] == salts[6:]
    assert len(set(salts)) == kinds
    assert salts[0] == ""


async def test_truncate_keeps_the_end(served: Served) -> None:
    reply = await served.answer("abcdef", truncate=3, return_full_text=True)
    assert served.engine.prompts[1] == ids("def")
    assert json.loads(reply.body)["generated_text"] == "def DEF"


async def test_a_long_answer_ends_with_the_context(served: Served) -> None:
    served.engine.reply_to = lambda prompt: "y" * 100
    reply = await served.answer("x" * 60, max_new_tokens=1000, min_new_tokens=500, details=True)
    details = json.loads(reply.body)["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 4)
    assert served.engine.sampling[1].min_new_tokens == 4


async def test_a_prompt_must_fit(served: Served) -> None:
    with pytest.raises(ParameterError) as caught:
        await served.answer("x" * 64)
    assert caught.value.message.startswith("inputs: 64 tokens, expected at most 63 (the model's context is 64 tokens")
    assert not served.engine.prompts
    await served.answer("x" * 63)


async def test_a_very_long_prompt_is_tokenized_off_the_loop(model_dir: Path, watch: Watch) -> None:
    limits = msgspec.structs.replace(LIMITS, max_model_len=1 << 20)
    served = await Served(model_dir, limits).load()
    served.engine.reply_to = lambda prompt: "short"
    went_on = watch(FastBackend, "encode")
    await served.answer("long " * 10_000)
    assert went_on == [True]
    assert len(served.engine.prompts[1]) == 50_000


async def test_bad_requests_are_told(served: Served) -> None:
    for body, error in ((5, PayloadError), ("", PayloadError)):
        with pytest.raises(error):
            await served.answer(body)
    with pytest.raises(ParameterError, match=r"^parameters\.temperature: expected a number >= 0"):
        await served.answer("x", temperature="hot")
    assert not served.engine.prompts


async def test_a_prompt_without_tokens(model_dir: Path) -> None:
    stripping = byte_tokenizer()
    from tokenizers import normalizers

    stripping.normalizer = normalizers.Strip()
    stripping.save(str(model_dir / "tokenizer.json"))
    served = await Served(model_dir).load()
    with pytest.raises(PayloadError, match="no tokens"):
        await served.answer("   ")


# ------------------------------------------------------------------------------------------------ failures


async def test_an_engine_error_before_the_first_token_has_its_status(served: Served) -> None:
    task, reply = served.ask("x", stream=True)
    await served.submitted()
    served.engine.fail("out of blocks")
    with pytest.raises(GenerationError, match="out of blocks"):
        await task
    assert not reply.started


async def test_an_engine_error_later_ends_the_stream(served: Served) -> None:
    task, reply = served.ask("x", stream=True)
    await served.submitted()
    served.engine.step()
    served.engine.fail("out of blocks")
    await task
    assert reply.finished
    first, last = reply.lines()
    assert first["token"]["text"] == " "
    assert last["error"] == "out of blocks"
    assert last["details"]["finish_reason"] == "error"
    assert served.metrics.counts["aborted_requests"] == 1


async def test_a_client_that_goes_leaves_the_engine(served: Served) -> None:
    task, _ = served.ask("x" * 20)
    other, reply = served.ask("y")
    await served.submitted(2)
    served.engine.step()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert served.engine.cancelled == [1]
    assert not served.metrics.counts["aborted_requests"], "the front end knows"
    await served.engine.run()
    await other
    assert json.loads(reply.body)["generated_text"] == " Y"


#: What the user's function does -> what becomes of the request.
FORMATTERS = {
    "raise ValueError('mine')": "mine",
    "raise StopIteration": "StopIteration",
    "return 5": "@output_formatter custom returned int, expected str",
}


@pytest.mark.parametrize("what", FORMATTERS)
async def test_a_formatter_that_fails_costs_its_request_only(model_dir: Path, what: str) -> None:
    (model_dir / "model.py").write_text(
        "from djl_python.output_formatter import TextGenerationOutput, output_formatter\n"
        "@output_formatter\n"
        "def custom(request_output: TextGenerationOutput) -> str:\n"
        "    token, first, last = request_output.sequences[0].get_next_token()\n"
        f"    if request_output.input.parameters.get('boom') and token.text == 'X': {what}\n"
        "    return token.text\n"
    )
    served = await Served(model_dir).load()
    bad, bad_reply = served.ask("xx", stream=True, boom=True)
    good, good_reply = served.ask("xx", stream=True)
    await served.submitted(2)
    await served.engine.run()
    await good
    if what.startswith("raise"):
        # Not ours: the worker's boundary logs it and ends the stream.
        with pytest.raises((ValueError, RuntimeError), match=FORMATTERS[what]):
            await bad
        assert not bad_reply.finished
    else:
        await bad
        assert json.loads(bad_reply.body.removeprefix(b" "))["error"] == FORMATTERS[what]
    assert good_reply.body == b" XX"
    assert served.engine.cancelled == [1]


async def test_a_model_py_is_imported_once(model_dir: Path) -> None:
    (model_dir / "model.py").write_text("import no_such_module_here\n")
    with pytest.raises(ModuleNotFoundError):
        await Served(model_dir).load()


# ------------------------------------------------------------------------------------------------ loading


@pytest.mark.parametrize("setting", ["own.jinja", "{{ messages[0].content }}!", None])
async def test_a_chat_template_of_the_settings_counts_instead_of_the_checkpoints(
    model_dir: Path, setting: str | None
) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}?")
    (model_dir / "own.jinja").write_text("{{ messages[0].content }}!")
    served = Served(model_dir)
    options: dict[str, Any] = {} if setting is None else {"chat_template": setting}
    await served.load(**options)
    task, reply = served.call("plain", "render", {"messages": [{"role": "user", "content": "Hello"}]})
    await task
    assert reply.body == (b"Hello?" if setting is None else b"Hello!")
    await served.handler.close()


async def test_without_a_tokenizer_no_engine_is_started(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").unlink()
    served = Served(model_dir)
    with pytest.raises(ModelLoadError, match="there is no tokenizer"):
        await served.load()
    assert not hasattr(served.engine, "callbacks")


async def test_a_broken_tokenizer_closes_the_engine(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text("{}")
    served = Served(model_dir)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        await served.load()
    assert served.engine.closed


async def test_a_checkpoint_that_was_fetched_is_looked_at_before_an_engine_is_started(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("djl_python.handlers.text_generation.local_path", lambda *_: model_dir)
    (model_dir / "model.safetensors").unlink()
    served = Served(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(ModelLoadError, match="there are no weights"):
        await served.load(model_id="owner/name")
    assert not hasattr(served.engine, "callbacks")


async def test_an_engine_that_does_not_open(model_dir: Path) -> None:
    async def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ModelLoadError("no weights")

    served = Served(model_dir)
    served.handler = TextGenerationHandler(refuse)
    with pytest.raises(ModelLoadError, match="no weights"):
        await served.load()


async def test_an_unknown_output_formatter_is_told_at_load(model_dir: Path) -> None:
    with pytest.raises(ModelLoadError, match="output_formatter=xml: expected json, json_chat, jsonlines"):
        await Served(model_dir).load(output_formatter="xml")


async def test_close(served: Served) -> None:
    await served.handler.close()
    assert served.engine.closed


# ------------------------------------------------------------------------------------------------ numbers


async def test_requests_are_measured(served: Served) -> None:
    await served.answer("hi")
    counts, observed = served.metrics.counts, served.metrics.observations
    assert (counts["prompt_tokens"], counts["generated_tokens"]) == (2, 4)
    assert len(observed["time_to_first_token_seconds"]) == 1
    assert len(observed["inter_token_latency_seconds"]) == 3


async def test_a_list_of_prompts_has_a_list_of_texts(model_dir: Path) -> None:
    served = await Served(model_dir).load(rolling_batch="disable")
    whole = await served.answer(["hi", "ho"], max_new_tokens=2)
    assert whole.lines() == [[{"generated_text": " H"}, {"generated_text": " H"}]]
    streamed = await served.answer(["hi", "ho"], stream=True, max_new_tokens=2)
    assert streamed.lines() == [{"outputs": [" ", " "]}, {"outputs": ["H", "H"]}]


async def test_waiting_is_measured_from_the_front_end_to_the_first_step(served: Served) -> None:
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 4}}
    reply = await served.ended(*served.call("tgi", "generate", body, waited_s=5.0))
    observed = served.metrics.observations
    (here,), (whole,) = observed["queue_seconds"], observed["request_queue_seconds"]
    assert here < 1 and whole == pytest.approx(5 + here)
    assert int(reply.headers["x-queue-time"]) >= 5000
    (mean,), (inference,) = observed["request_time_per_token_seconds"], observed["request_inference_seconds"]
    assert mean == pytest.approx(inference / observed["request_generated_tokens"][0])


def steps(preemptions: Iterable[int]) -> list[EngineStats]:
    return [EngineStats(2, 1, 5, 20, count, step_s=0.01) for count in preemptions]


async def test_the_engine_is_measured(served: Served) -> None:
    for stats in steps([0, 2, 2, 3]):
        served.engine.callbacks["on_stats"](stats)
    served.engine.callbacks["on_death"]("killed")  # what has not been reported yet is not lost
    assert served.metrics.counts["preemptions"] == 3
    assert served.metrics.gauges == {
        "running_requests": 2,
        "waiting_requests": 1,
        "kv_cache_blocks_used": 5,
        "kv_cache_blocks_total": 20,
    }
    assert served.metrics.observations["engine_step_seconds"] == [0.01] * 4


async def test_the_engines_death_is_the_workers(served: Served) -> None:
    served.engine.callbacks["on_death"]("killed")
    assert served.failures == ["killed"]


@pytest.mark.parametrize("parameters", [{}, {"n": 2, "do_sample": True, "details": True}])
async def test_every_sequence_of_a_request_has_its_adapter(model_dir: Path, parameters: dict[str, Any]) -> None:
    served = await Served(model_dir).load(adapters=("tom",))
    body = {"inputs": "ab", "adapters": "tom", "parameters": {"max_new_tokens": 2, **parameters}}
    reply = await served.ended(*served.call("lmi", "predict", body))
    assert reply.status == 200
    assert set(served.engine.adapters) == {"tom"}
    await served.answer("ab", max_new_tokens=2)
    assert served.engine.adapters[-1] == ""


async def test_the_engines_own_metrics_are_passed_on(served: Served) -> None:
    families = [MetricFamily("vllm:x", "gauge", "X.", [MetricSample("vllm:x", {}, 1.0)])]
    served.engine.callbacks["on_metrics"](families)
    assert served.metrics.families == families

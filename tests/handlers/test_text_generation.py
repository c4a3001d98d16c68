"""The built-in handler, over an engine whose steps the test makes."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers

from djl_python.config import ModelConfig, Options
from djl_python.errors import GenerationError, ModelLoadError, ParameterError, PayloadError
from djl_python.handler import Context
from djl_python.handlers.text_generation import TextGenerationHandler
from djl_python.inputs import Input
from djl_python.protocol import Call, Opened
from djl_python.types import EngineStats, FinishReason, SamplingParams, TokenEvent

EOS = "<|end|>"
LIMITS = Opened(max_model_len=64, max_batch_size=4, kv_blocks=16, block_size=4)


def byte_tokenizer() -> Fast:
    """One token for each byte, and an end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Fast(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    return tokenizer


BYTES = byte_tokenizer()
EOS_ID = BYTES.token_to_id(EOS)


def ids(text: str) -> list[int]:
    return list(BYTES.encode(text).ids)


class FakeEngine:
    """Plays scripts: the ids that `reply_to` gives for a prompt, one for each sequence in each step."""

    def __init__(self, limits: Opened = LIMITS) -> None:
        self.limits = limits
        self.sequences: dict[int, tuple[list[int], SamplingParams, Callable[[TokenEvent], None], list[int]]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.sampling: dict[int, SamplingParams] = {}
        self.cancelled: list[int] = []
        self.closed = False
        self.reply_to: Callable[[str], str] = lambda prompt: f" {prompt.upper()}"
        self.submitted = asyncio.Event()

    async def open(self, config: ModelConfig, model_path: Path, **callbacks: Any) -> FakeEngine:
        self.callbacks = callbacks
        self.model_path = model_path
        return self

    def submit(self, prompt_ids: list[int], sampling: SamplingParams, on_event: Callable[[TokenEvent], None]) -> int:
        request_id = len(self.prompts) + 1
        script = [*ids(self.reply_to(BYTES.decode(prompt_ids))), EOS_ID]
        self.sequences[request_id] = (prompt_ids, sampling, on_event, script)
        self.prompts[request_id] = prompt_ids
        self.sampling[request_id] = sampling
        self.submitted.set()
        return request_id

    def cancel(self, request_id: int) -> None:
        if self.sequences.pop(request_id, None) is not None:
            self.cancelled.append(request_id)

    def step(self) -> None:
        for request_id, (prompt_ids, sampling, on_event, script) in list(self.sequences.items()):
            if request_id not in self.sequences:
                continue
            token_id = script.pop(0)
            made = len(ids(self.reply_to(BYTES.decode(prompt_ids)))) + 1 - len(script)
            finish = None
            if token_id == EOS_ID:
                finish = FinishReason.EOS
            elif made == sampling.max_new_tokens:
                finish = FinishReason.LENGTH
            if finish is not None:
                del self.sequences[request_id]
            on_event(TokenEvent(request_id, token_id, logprob=-0.5, finish=finish))

    def fail(self, message: str) -> None:
        sequences, self.sequences = self.sequences, {}
        for request_id, (_, _, on_event, _) in sequences.items():
            on_event(TokenEvent(request_id, -1, error=message))

    async def run(self) -> None:
        """Steps until nothing is left."""
        await self.submitted.wait()
        while self.sequences:
            self.step()
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.closed = True


class FakeReply:
    def __init__(self) -> None:
        self.started = self.finished = False
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.started
        self.started, self.status, self.headers = True, status, headers

    def write(self, data: bytes) -> None:
        assert self.started and not self.finished
        self.pieces.append(data)

    def finish(self, data: bytes = b"") -> None:
        self.write(data)
        self.finished = True

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class FakeMetrics:
    def __init__(self) -> None:
        self.counts: dict[str, float] = defaultdict(float)
        self.gauges: dict[str, float] = {}
        self.observations: dict[str, list[float]] = defaultdict(list)

    def count(self, name: str, amount: float = 1) -> None:
        self.counts[name] += amount

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        self.observations[name].append(value)


class Served:
    """A loaded handler and what it was given."""

    def __init__(self, model_dir: Path, limits: Opened = LIMITS) -> None:
        self.model_dir = model_dir
        self.engine = FakeEngine(limits)
        self.metrics = FakeMetrics()
        self.failures: list[str] = []
        self.handler = TextGenerationHandler(self.engine.open)

    async def load(self, **options: Any) -> Served:
        config = ModelConfig(name="m", path=str(self.model_dir), option=Options(**options))
        await self.handler.load(
            Context(
                name="m",
                version="",
                model_dir=self.model_dir,
                config=config,
                metrics=self.metrics,
                progress=lambda what, done, total: None,
                fail=self.failures.append,
            )
        )
        return self

    def ask(self, inputs: Any, stream: bool = False, **parameters: Any) -> tuple[asyncio.Task[None], FakeReply]:
        """Serve a request as a task."""
        body = msgspec.json.encode({"inputs": inputs, "parameters": parameters, "stream": stream})
        call = Call(1, "lmi", "predict", "POST", "/invocations", (), {"content-type": "application/json"}, body)
        reply = FakeReply()
        return asyncio.create_task(self.handler.serve(Input.from_call(call), reply)), reply

    async def answer(self, inputs: Any, stream: bool = False, **parameters: Any) -> FakeReply:
        """Serve a request to its end."""
        task, reply = self.ask(inputs, stream, **parameters)
        running = asyncio.create_task(self.engine.run())
        try:
            await task
        finally:
            running.cancel()
        return reply

    async def submitted(self, number: int = 1) -> None:
        while len(self.engine.prompts) < number:
            await asyncio.sleep(0)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    BYTES.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
async def served(model_dir: Path) -> Served:
    return await Served(model_dir).load()


# ------------------------------------------------------------------------------------------------ answers


async def test_one_answer(served: Served) -> None:
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


async def test_a_very_long_prompt_is_tokenized_off_the_loop(model_dir: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, max_model_len=1 << 20)
    served = await Served(model_dir, limits).load()
    served.engine.reply_to = lambda prompt: "short"
    await served.answer("long " * 10_000)
    assert len(served.engine.prompts[1]) == 50_000


async def test_bad_requests_are_told(served: Served) -> None:
    for body, error in ((5, PayloadError), ("", PayloadError)):
        with pytest.raises(error):
            await served.answer(body)
    with pytest.raises(ParameterError, match=r"^parameters\.temperature: expected a number > 0"):
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


async def test_a_client_that_goes_leaves_the_engine(served: Served) -> None:
    task, _ = served.ask("x" * 20)
    other, reply = served.ask("y")
    await served.submitted(2)
    served.engine.step()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert served.engine.cancelled == [1]
    assert served.metrics.counts["aborted_requests"] == 1
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


async def test_a_missing_tokenizer_closes_the_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    served = Served(tmp_path)
    with pytest.raises(ModelLoadError, match="there is no tokenizer"):
        await served.load()
    assert served.engine.closed


async def test_an_engine_that_does_not_open(model_dir: Path) -> None:
    async def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ModelLoadError("no weights")

    served = Served(model_dir)
    served.handler = TextGenerationHandler(refuse)
    with pytest.raises(ModelLoadError, match="no weights"):
        await served.load()


async def test_an_unknown_output_formatter_is_told_at_load(model_dir: Path) -> None:
    with pytest.raises(ModelLoadError, match="output_formatter=xml: expected json, jsonlines, sse"):
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


def steps(preemptions: Iterable[int]) -> list[EngineStats]:
    return [EngineStats(2, 1, 5, 20, count, step_s=0.01, step_tokens=2) for count in preemptions]


async def test_the_engine_is_measured(served: Served) -> None:
    for stats in steps([0, 2, 2, 3]):
        served.engine.callbacks["on_stats"](stats)
    assert served.metrics.counts["preemptions"] == 3
    assert served.metrics.gauges == {
        "running_requests": 2,
        "waiting_requests": 1,
        "kv_cache_blocks_used": 5,
        "kv_cache_blocks_total": 20,
        "kv_cache_usage_ratio": 0.25,
    }
    assert served.metrics.observations["engine_step_seconds"] == [0.01] * 4


async def test_the_engines_death_is_the_workers(served: Served) -> None:
    served.engine.callbacks["on_death"]("killed")
    assert served.failures == ["killed"]

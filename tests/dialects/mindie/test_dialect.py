"""Request -> required response, as MindIE's document says it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from djl_python.config import Checkpoint, ModelConfig, Options
from djl_python.core import errors
from djl_python.core.types import Chat, Delta, Finish, FinishReason, ImageSource, Token
from djl_python.dialects import dialect
from djl_python.dialects.mindie.dialect import MindieDialect
from djl_python.dialects.shared.base import Parsed
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call

MINDIE = MindieDialect()
#: The document's own example.
EXAMPLE = {
    "inputs": "My name is Olivier and I",
    "parameters": {
        "decoder_input_details": False,
        "details": True,
        "do_sample": True,
        "max_new_tokens": 20,
        "repetition_penalty": 1.03,
        "return_full_text": False,
        "seed": None,
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.95,
        "truncate": None,
        "typical_p": 0.5,
        "watermark": False,
        "stop": None,
        "adapter_id": "None",
    },
}
PICTURE = "data:image/png;base64,AAAA"


def model(*, takes_images: bool = False, **options: Any) -> ModelConfig:
    given = {"tgi_dialect": "mindie"} | options
    return ModelConfig(name="m", option=Options(**given), checkpoint=Checkpoint(takes_images=takes_images))


def inputs(body: Any) -> Input:
    headers = {"content-type": "application/json"}
    call = Call(1, "mindie", "generate_stream", "POST", "/generate_stream", (), headers, msgspec.json.encode(body))
    return Input.from_call(call)


def parse(body: Any, **options: Any) -> Parsed:
    return MINDIE.parse(inputs(body), model(**options))


def parameters(**given: Any) -> Parsed:
    return parse({"inputs": "a", "parameters": given})


def refused(body: Any, **options: Any) -> Any:
    """The message of a 422."""
    given = inputs(body)
    with pytest.raises((errors.ParameterError, errors.PayloadError)) as caught:
        MINDIE.parse(given, model(**options))
    answer = MINDIE.error(caught.value, model(**options), inputs=given)
    assert answer.status == 422
    shape = json.loads(answer.body)
    assert shape.keys() == {"error", "error_type"}
    assert shape["error_type"] == "validation"
    prefix, _, message = shape["error"].partition(": ")
    assert prefix == "Input validation error"
    return message


TOKENS = (Token(13, "\n", -0.5), Token(26626, "Jan", -1.25), Token(300, "et", -1.0), Token(2, "", -0.1, special=True))
FINISH = Finish(reason=FinishReason.EOS, text="\nJanet", prompt="a", prompt_tokens=74, generated_tokens=4)


def streamed(parsed: Parsed) -> list[Any]:
    push = parsed.formatter.push
    data = push(Delta(tokens=TOKENS[:1])) + push(Delta()) + push(Delta(tokens=TOKENS[1:], finish=FINISH))
    data += parsed.formatter.end()
    assert data.endswith(b"\n\n")
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


# ------------------------------------------------------------------------------------------------ answers


def test_stream() -> None:
    parsed = parameters(details=True, seed=8756727004129248931)
    assert parsed.formatter.stream
    assert parsed.formatter.headers["content-type"] == "text/event-stream"
    *before, last = streamed(parsed)
    texts = ["\n", "Jan", "et"]
    assert before == [
        {
            "token": {"id": token.id, "text": text, "logprob": None, "special": None},
            "generated_text": None,
            "details": None,
        }
        for token, text in zip(TOKENS, texts, strict=False)
    ]
    assert last == {
        "token": {"id": 2, "text": "", "logprob": None, "special": None},
        "generated_text": "\nJanet",
        "details": {
            "prompt_tokens": 74,
            "finish_reason": "eos_token",
            "generated_tokens": 4,
            "seed": 8756727004129248931,
        },
    }


def test_details_only_when_asked_for() -> None:
    last = streamed(parameters())[-1]
    assert last["generated_text"] == "\nJanet"
    assert last["details"] is None


def test_a_seed_is_drawn_and_told_even_without_sampling() -> None:
    parsed = parameters(details=True)
    sampling = parsed.requests[0].sampling
    assert not sampling.do_sample
    assert streamed(parsed)[-1]["details"]["seed"] == sampling.seed >= 1


def test_full_text_enabled() -> None:
    answer = streamed(parse({"inputs": "a"}, full_text_enabled=True))
    assert [event["token"]["text"] for event in answer] == ["\n", "\nJan", "\nJanet", "\nJanet"]
    assert answer[-1]["generated_text"] == "\nJanet"


def test_return_full_text() -> None:
    assert streamed(parameters(return_full_text=True))[-1]["generated_text"] == "a\nJanet"


def test_errors_after_the_first_byte() -> None:
    event = b'data: {"error":"Request failed during generation: gone","error_type":"generation"}\n\n'
    error = errors.WorkerDiedError("gone")
    assert (
        parameters().formatter.error(error)
        == MINDIE.stream_error(error, {"content-type": "text/event-stream"})
        == event
    )


def test_a_quiet_stream_sends_comments() -> None:
    assert parameters().formatter.keep_alive == b":\n\n"


# ------------------------------------------------------------------------------------------------ requests


def test_the_documents_example() -> None:
    parsed = parse(EXAMPLE)
    (request,) = parsed.requests
    sampling = request.sampling
    assert request.prompt == "My name is Olivier and I"
    assert (sampling.do_sample, sampling.max_new_tokens, sampling.repetition_penalty) == (True, 20, 1.03)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.typical_p) == (0.5, 10, 0.95, 1.0)
    assert parsed.formatter.headers["x-ignored-parameters"] == "typical_p"
    assert not request.must_fit


def test_defaults() -> None:
    (request,) = parse({"inputs": "a"}).requests
    assert request.sampling.max_new_tokens == 20
    assert not request.sampling.do_sample
    assert request.text.stop_sequences == ()
    assert request.truncate is None


@pytest.mark.parametrize(
    ("given", "draws"),
    [
        ({"temperature": 0.5}, True),
        ({"temperature": 1.0}, False),
        ({"top_k": 3}, True),
        ({"top_p": 0.5}, True),
        ({"typical_p": 0.5}, False),
        ({"do_sample": False, "temperature": 0.5}, False),
        ({"do_sample": True}, True),
    ],
)
def test_sampling(given: dict[str, Any], draws: bool) -> None:
    sampling = parameters(**given).requests[0].sampling
    assert sampling.do_sample is draws
    assert draws or sampling.temperature == 1.0


def test_parameters_without_effect_are_ignored_or_refused() -> None:
    parsed = parameters(watermark=True, typical_p=0.5, do_sample=False, temperature=0.5, seed=3, unheard_of=1)
    names = "seed,temperature,typical_p,unheard_of,watermark"
    assert parsed.formatter.headers["x-ignored-parameters"] == names
    assert "x-ignored-parameters" not in parameters(watermark=False, typical_p=1.0).formatter.headers
    for given in ({"watermark": True}, {"typical_p": 0.5}, {"unheard_of": 1}):
        message = refused({"inputs": "a", "parameters": given}, unknown_parameters="error")
        assert message.startswith(f"parameters.{next(iter(given))}: ")


def test_stop() -> None:
    assert parameters(stop="x").requests[0].text.stop_sequences == ("x",)
    assert parameters(stop=["x", "y" * 1024]).requests[0].text.stop_sequences == ("x", "y" * 1024)
    assert parameters(stop=[]).requests[0].text.stop_sequences == ()
    assert len(parameters(stop=["x" * 32] * 1024).requests[0].text.stop_sequences) == 1024


def test_parts() -> None:
    parts = [{"type": "text", "text": "My name"}, {"type": "text", "text": " is Olivier"}]
    assert parse({"inputs": parts}).requests[0].prompt == "My name is Olivier"


def test_pictures() -> None:
    picture = {"type": "image_url", "image_url": PICTURE}
    text = {"type": "text", "text": "What is this?"}
    assert refused({"inputs": [text, picture]}) == "inputs[1]: this model does not take images, expected text"
    (request,) = parse({"inputs": [text, picture]}, takes_images=True).requests
    assert request.prompt == Chat(
        messages=({"role": "user", "content": [text, {"type": "image"}]},),
        images=(ImageSource(PICTURE, "inputs[1].image_url"),),
    )
    assert not request.add_special_tokens
    assert "at most 1 image" in refused({"inputs": [picture, picture]}, takes_images=True)
    for url in ("http://a/b.png", "https://a/b.png"):
        (request,) = parse({"inputs": [{"type": "image_url", "image_url": url}]}, takes_images=True).requests
        assert isinstance(request.prompt, Chat) and request.prompt.images[0].url == url
    local = {"type": "image_url", "image_url": "/etc/passwd"}
    assert refused({"inputs": [local]}, takes_images=True).startswith("inputs[0].image_url: expected a data:")


def test_adapters() -> None:
    assert parameters(adapter_id="None").requests
    message = refused({"inputs": "a", "parameters": {"adapter_id": "adapter-1"}})
    assert message.startswith("parameters.adapter_id: this model has no adapters; option.enable_lora=true serves")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_new_tokens", (0, -1, 2**31, 1.5, "1", True)),
        ("top_k", (0, 2**31)),
        ("top_p", (0, 1.0, 1.5)),
        ("truncate", (0, 2**31)),
        ("seed", (0, -1, 2**64)),
        ("temperature", (0, -1)),
        ("repetition_penalty", (0, -1)),
        ("typical_p", (0, 1.1)),
        ("stop", ("", "x" * 1025, ["x" * 1025], [""], ["x"] * 1025, ["x" * 33] * 1000, 3)),
        ("adapter_id", ("", "a" * 257, "a b", 3)),
        ("decoder_input_details", (True, 1)),
        ("details", ("true",)),
        ("watermark", (1,)),
    ],
)
def test_ranges(name: str, wrong: tuple[Any, ...]) -> None:
    for value in wrong:
        message = refused({"inputs": "a", "parameters": {name: value}})
        assert message.startswith(f"parameters.{name}"), message
        assert "expected" in message


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("max_new_tokens", (1, 2**31 - 1)),
        ("top_k", (1, 2**31 - 1)),
        ("top_p", (0.001, 0.999)),
        ("truncate", (1, 2**31 - 1)),
        ("seed", (1, 2**64 - 1)),
        ("typical_p", (1.0,)),
    ],
)
def test_edges(name: str, edges: tuple[Any, ...]) -> None:
    for value in edges:
        assert parameters(**{name: value}).requests


@pytest.mark.parametrize("wrong", ["", None, [], 3, [{"type": "text", "text": ""}], [{"type": "sound"}], ["a"]])
def test_inputs(wrong: Any) -> None:
    assert refused({"inputs": wrong}).startswith("inputs")


def test_inputs_are_limited() -> None:
    limit = 4 * 1024 * 1024
    assert parse({"inputs": "a" * limit}).requests
    assert refused({"inputs": "a" * (limit + 1)}).startswith("inputs: expected")
    half = {"type": "text", "text": "a" * (limit // 2 + 1)}
    assert refused({"inputs": [half, half]}).startswith("inputs: expected at most")


def test_the_table_has_a_row_for_mindie() -> None:
    assert isinstance(dialect("mindie"), MindieDialect)

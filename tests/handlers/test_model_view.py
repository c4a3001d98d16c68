"""What queries are told about the loaded model."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import ContextLengthError, PayloadError
from djl_python.dialects.shared.typed_errors import typed_error
from djl_python.text.tokens.tokenizer import FastBackend
from tests.handlers.conftest import Watch
from tests.handlers.harness import LIMITS, Served
from tests.sketches import LLAMA


async def test_tokens_have_exact_characters(served: Served) -> None:
    text = "a👍 ß<|end|>"
    reply = await served.query("tokenize", text.encode())
    spans = [(span["text"], span["start"], span["stop"]) for span in json.loads(reply.body)]
    assert spans == [("a", 0, 1), *[("👍", 1, 2)] * 4, (" ", 2, 3), *[("ß", 3, 4)] * 2, ("<|end|>", 4, 11)]
    assert all(text[start:stop] == piece for piece, start, stop in spans)


async def test_a_long_text_is_tokenized_off_the_loop(served: Served, watch: Watch) -> None:
    went_on = watch(FastBackend, "spans")
    assert len(json.loads((await served.query("tokenize", b"long " * 10_000)).body)) == 50_000
    assert went_on == [True]


async def test_more_tokens_than_can_be_listed(served: Served) -> None:
    for text, said in (("x" * 100_001, "100001"), ("many " * 1_000_000, "at least 1[0-9]{5}")):
        with pytest.raises(ContextLengthError, match=f"^inputs: {said} tokens, expected at most 100000"):
            await served.query("tokenize", text.encode())
    task, _ = served.call("tgi", "tokenize", {"inputs": "x" * 600_000})
    with pytest.raises(ContextLengthError, match=r"^inputs: at least"):
        await task
    status, body = typed_error(ContextLengthError(100_005, None, 100_001, at_least=True))
    assert (status, body.error_type) == (422, "validation")
    assert body.error.endswith("`inputs` must have less than 100001 tokens. Given: at least 100005")


async def test_a_chat_is_rendered(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}!")
    served = await Served(model_dir).load()
    reply = await served.query("render", {"messages": [{"role": "user", "content": "hi"}]})
    assert reply.body == b"<user>hi!"


async def test_a_chat_without_a_template(served: Served) -> None:
    with pytest.raises(PayloadError, match="this model has no chat template"):
        await served.query("render", {"messages": [{"role": "user", "content": "hi"}]})


@pytest.mark.parametrize(
    ("config", "option", "dtype"),
    [
        ({}, "auto", "float32"),
        ({"torch_dtype": "bfloat16"}, "auto", "bfloat16"),
        ({"text_config": {"dtype": "float16"}}, "auto", "float16"),
        ({"dtype": "bfloat16"}, "fp32", "float32"),
    ],
)
async def test_limits_and_names(model_dir: Path, config: dict[str, object], option: str, dtype: str) -> None:
    (model_dir / "config.json").write_text(json.dumps(LLAMA | config))
    served = await Served(model_dir).load(dtype=option)
    info = json.loads((await served.query("info")).body)
    assert info == ["m", "m", dtype, LIMITS.max_model_len, 2 * LIMITS.max_batch_size]


async def test_the_engine_knows_best_what_it_computes_in(model_dir: Path) -> None:
    (model_dir / "config.json").write_text(json.dumps({**LLAMA, "dtype": "float16"}))
    served = await Served(model_dir, msgspec.structs.replace(LIMITS, info=EngineInfo(dtype="bfloat16"))).load(
        dtype="fp16"
    )
    assert json.loads((await served.query("info")).body)[2] == "bfloat16"
    assert served.handler.engine_info == EngineInfo(dtype="bfloat16", max_model_len=LIMITS.max_model_len)

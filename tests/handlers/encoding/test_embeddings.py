"""Embeddings from the handler: what modules, prompts and requests make of hidden states."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from djl_python.core import budgets
from djl_python.core.errors import ModelLoadError, ParameterError, PayloadError, PredictTimeoutError, TextLengthError
from djl_python.core.text_tasks import ClassifyRequest, EmbedRequest, Granularity, ScoreRequest, TextInput
from djl_python.core.turns.precedence import Precedence
from tests.encoders import SPECIAL, WORDS, write_encoder, write_modules
from tests.handlers.encoding.harness import ServedEncoder

IDS = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
SENTENCE = "the cat sat on a mat"


def ids_of(text: str) -> list[int]:
    return [IDS["[CLS]"], *(IDS[word] for word in text.split()), IDS["[SEP]"]]


@torch.inference_mode()
def hidden(model: Any, text: str) -> Any:
    return model(torch.tensor([ids_of(text)])).last_hidden_state[0]


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def embed(text: str = SENTENCE, **settings: Any) -> EmbedRequest:
    own = {name: settings.pop(name) for name in TextInput.__struct_fields__ if name in settings}
    return EmbedRequest(text=TextInput(text=text, **{"field": "input", **own}), **settings)


async def test_a_list_is_answered_in_its_order(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    texts = [" ".join(WORDS[:count]) for count in (3, 1, 9, 2)]
    embeddings = await served.ask(*map(embed, texts))
    for text, one in zip(texts, embeddings, strict=True):
        np.testing.assert_allclose(one["values"], unit(hidden(model, text).mean(0).numpy()), atol=1e-6)
        assert (one["shape"], one["tokens"]) == ([32], len(text.split()) + 2)
    assert served.handler.task == "feature-extraction"
    assert served.metrics.counts["prompt_tokens"] == sum(one["tokens"] for one in embeddings)
    await served.handler.close()


POOLED: dict[str, Callable[[Any], Any]] = {
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len": lambda states: states.sum(0) / np.sqrt(len(states)),
    "weightedmean": lambda states: np.average(states, 0, np.arange(1, len(states) + 1)),
    "lasttoken": lambda states: states[-1],
}


@pytest.mark.parametrize("pooling", POOLED)
async def test_the_checkpoint_says_how_tokens_are_pooled(tmp_path: Path, pooling: str) -> None:
    model = write_encoder(tmp_path)
    switch = {"cls": "cls_token", "lasttoken": "lasttoken"}.get(pooling, f"{pooling}_tokens")
    write_modules(
        tmp_path, "Pooling", pooling={f"pooling_mode_{switch}": True, "pooling_mode_mean_tokens": pooling == "mean"}
    )
    served = await ServedEncoder(tmp_path).load()
    (one, _) = await served.ask(embed(), embed("two birds"))
    np.testing.assert_allclose(one["values"], POOLED[pooling](hidden(model, SENTENCE).numpy()), rtol=1e-5, atol=1e-5)


async def test_several_poolings_are_concatenated_and_an_option_chooses_another(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    write_modules(tmp_path, "Pooling", pooling={"pooling_mode": ["mean", "cls"]})
    states = hidden(model, SENTENCE).numpy()
    (one,) = await (await ServedEncoder(tmp_path).load()).ask(embed())
    np.testing.assert_allclose(one["values"], np.concatenate([states[0], states.mean(0)]), atol=1e-5)
    (one,) = await (await ServedEncoder(tmp_path).load(pooling="max", normalize=True)).ask(embed())
    np.testing.assert_allclose(one["values"], unit(states.max(0)), atol=1e-5)


async def test_dense_layers_and_normalization_follow(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    write_modules(tmp_path, "Pooling", "Dense", "Normalize")
    served = await ServedEncoder(tmp_path).load()
    weights = load_file(tmp_path / "2_Dense" / "model.safetensors")
    expected = torch.tanh(weights["linear.weight"] @ hidden(model, SENTENCE).mean(0) + weights["linear.bias"]).numpy()
    whole, raw, short = await served.ask(embed(), embed(normalize=False), embed(dimensions=3))
    np.testing.assert_allclose(whole["values"], unit(expected), atol=1e-5)
    np.testing.assert_allclose(raw["values"], expected, atol=1e-5)
    np.testing.assert_allclose(short["values"], unit(expected[:3]), atol=1e-5)
    with pytest.raises(ParameterError, match="dimensions: expected 1 to 8, got 9"):
        await served.ask(embed(dimensions=9))


async def test_weights_that_may_hold_code_are_not_read(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    write_modules(tmp_path, "Pooling", "Dense")
    (tmp_path / "2_Dense" / "model.safetensors").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(
        ModelLoadError, match=r"2_Dense: there is no model.safetensors; other files of weights may hold"
    ):
        await ServedEncoder(tmp_path).load()


async def test_a_module_that_is_not_computed_is_named(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    write_modules(tmp_path, "WordWeights")
    with pytest.raises(
        ModelLoadError, match=r"sentence_transformers.models.WordWeights is not computed here; expected"
    ):
        await ServedEncoder(tmp_path).load()


async def test_every_token_has_its_hidden_state(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    (one,) = await served.ask(embed(granularity=Granularity.TOKENS))
    assert one["shape"] == [8, 32]
    np.testing.assert_allclose(np.reshape(one["values"], (8, 32)), hidden(model, SENTENCE).numpy(), atol=1e-5)


async def test_prompts_come_before_texts_and_may_be_left_out_of_the_pooling(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    says: dict[str, Any] = {"prompts": {"query": "who sat ", "document": ""}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(says))
    served = await ServedEncoder(tmp_path).load()
    plain, query = await served.ask(embed(), embed(prompt_name="query"))
    states = hidden(model, f"who sat {SENTENCE}").numpy()
    np.testing.assert_allclose(query["values"], unit(states.mean(0)), atol=1e-5)
    assert query["tokens"] == plain["tokens"] + 2
    with pytest.raises(ParameterError, match="prompt_name: there is no prompt 'passage'; expected query"):
        await served.ask(embed(prompt_name="passage"))
    write_modules(tmp_path, "Pooling", pooling={"pooling_mode_mean_tokens": True, "include_prompt": False})
    says["default_prompt_name"] = "query"
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(says))
    (one,) = await (await ServedEncoder(tmp_path).load()).ask(embed())
    np.testing.assert_allclose(one["values"], states[3:].mean(0), atol=1e-5)


async def test_a_text_that_is_too_long_is_refused_or_cut(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.engine_info is not None and served.handler.engine_info.max_model_len == 6
    with pytest.raises(TextLengthError, match=r"input\[1\]: 8 tokens, expected at most 6") as caught:
        await served.ask(embed("the cat"), embed(field="input[1]"))
    assert (caught.value.prompt_tokens, caught.value.limit, caught.value.field) == (8, 6, "input[1]")
    with pytest.raises(TextLengthError, match="input: at least "):
        await served.ask(embed("the cat " * 30_000))
    right, left, few = await served.ask(
        embed(truncate="right"), embed(truncate="left"), embed("the cat " * 300_000, truncate="right", max_tokens=4)
    )
    for one, text in ((right, "the cat sat on"), (left, "sat on a mat"), (few, "the cat")):
        np.testing.assert_allclose(one["values"], unit(hidden(model, text).mean(0).numpy()), atol=1e-5)
    (whole,) = await (await ServedEncoder(tmp_path).load(max_model_len=32)).ask(embed())
    assert whole["tokens"] == 8


async def test_ids_stand_for_a_text(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    text, ids = await served.ask(embed(), embed("", ids=tuple(ids_of(SENTENCE))))
    assert text == ids
    with pytest.raises(ParameterError, match="input: expected token ids below 19, got 64"):
        await served.ask(embed("", ids=(2, 64)))
    with pytest.raises(ParameterError, match="input: expected a text that has tokens, got ''"):
        await served.ask(embed("", add_special_tokens=False))


async def test_two_texts_are_compared_by_their_embeddings_and_a_query_is_computed_once(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load(task="rerank")
    documents = ["two birds", "who sat on it", SENTENCE]
    scores = await served.ask(*(ScoreRequest(text=TextInput(text=SENTENCE, pair=one)) for one in documents))
    query = unit(hidden(model, SENTENCE).mean(0).numpy())
    expected = [float(query @ unit(hidden(model, one).mean(0).numpy())) for one in documents]
    assert [one["value"] for one in scores] == pytest.approx(expected, abs=1e-5)
    assert [len(inputs) for inputs in served.engine.requests] == [3]
    assert served.handler.task == "text-ranking"


async def test_requests_that_the_model_does_not_take_are_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    with pytest.raises(PayloadError, match="model 'm' is for feature-extraction, and this request is not"):
        await served.ask(ClassifyRequest(text=TextInput(text="the cat")))
    with pytest.raises(PayloadError, match="embeddings are dense"):
        await served.ask(embed(granularity=Granularity.SPARSE))


async def test_a_request_has_the_turn_of_its_call_and_the_priority_of_its_body(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    sender = Precedence("gold", weight=2.0, priority=9, background=True)
    body: dict[str, Any] = {"type": "EmbedRequest", "requests": [embed()]}
    for more in ({}, {"priority": 3}):
        task, _ = served.call("generate", body | more, sender)
        await task
    assert served.engine.precedences == [sender, Precedence("gold", weight=2.0, priority=3, background=True)]


async def test_a_request_may_say_how_long_it_waits_and_who_leaves_takes_its_texts_along(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    served.engine.may_compute.clear()
    body = {"type": "EmbedRequest", "requests": [embed()]}
    task, reply = served.call("generate", body, **{"x-request-timeout": "0.05"})
    with pytest.raises(PredictTimeoutError, match=r"no answer within the 0.05 s that the request allows"):
        await task
    assert (served.engine.cancelled, reply.started) == (1, False)
    assert served.metrics.counts["aborted_requests"] == 1
    task, _ = served.call("generate", body)
    while len(served.engine.requests) < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert served.engine.cancelled == 2


async def test_queries_are_answered_about_it(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    task, reply = served.call("tokenize", ["the", "cat"])
    await task
    words = [token["text"] for token in json.loads(reply.body)]
    assert words == ["", '["', "the", '","', "cat", '"]', ""]
    task, reply = served.call("info", None)
    await task
    assert json.loads(reply.body) == ["m", "float32", 64]


async def test_a_request_for_too_many_vectors_of_tokens_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_encoder(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    wanted = embed(granularity=Granularity.TOKENS)
    most = 2 * len(ids_of(SENTENCE))
    monkeypatch.setattr(budgets, "TOKEN_VECTORS", budgets.TOKEN_VECTORS._replace(most=most))
    assert len(await served.ask(wanted, wanted)) == 2
    with pytest.raises(PayloadError, match=f"expected at most {most} vectors of tokens together"):
        await served.ask(wanted, wanted, wanted)
    assert len(await served.ask(*[embed()] * 3)) == 3, "of whole texts"

"""What OpenAI's answers tell about tokens beside the text, over the real engine: which were cached, their ids, the
log-probabilities of the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from djl_python.testing import RunningServer

#: Tokens in a block of the KV cache: `option.block_size` where nothing sets it.
BLOCK = 16


@pytest.fixture(scope="module")
def client(demo: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, **{"max_tokens": 1, "temperature": 0, **options})


def cached(usage: Any) -> int:
    count: int = usage.prompt_tokens_details.cached_tokens
    return count


# ------------------------------------------------------------------------------------------------ cached tokens


def test_usage_has_the_prompt_tokens_that_were_cached(client: openai.OpenAI) -> None:
    prompt = [600 + i % 7 for i in range(3 * BLOCK)]
    assert cached(complete(client, prompt).usage) == 0
    assert cached(complete(client, prompt).usage) == 2 * BLOCK  # the last token is always computed, with its block
    assert cached(complete(client, [*prompt, 1]).usage) == 3 * BLOCK
    assert cached(complete(client, [1, *prompt]).usage) == 0


def test_prompts_are_summed_and_their_choices_count_once(client: openai.OpenAI) -> None:
    first, second = ([start + i % 5 for i in range(2 * BLOCK)] for start in (700, 800))
    drawn = complete(client, first, n=3, temperature=1).usage
    assert (cached(drawn), drawn.prompt_tokens, drawn.completion_tokens) == (0, 2 * BLOCK, 3)
    assert cached(complete(client, first, n=1, best_of=3, temperature=1).usage) == BLOCK
    assert cached(complete(client, second).usage) == 0
    both = complete(client, [first, [*second, 1]], n=2, temperature=1).usage
    assert (cached(both), both.prompt_tokens) == (BLOCK + 2 * BLOCK, 4 * BLOCK + 1)


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_whole(client: openai.OpenAI) -> None:
    prompt = [900 + i % 5 for i in range(2 * BLOCK)]
    for _ in range(2):
        assert cached(complete(client, prompt, echo=True, logprobs=0).usage) == 0


@pytest.mark.parametrize("n", [1, 2])
def test_a_chats_usage_has_them_streamed_or_not(client: openai.OpenAI, n: int) -> None:
    asked: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"What is deep learning? Tell {n} answers, " + "please " * BLOCK}],
        "max_tokens": 2,
        "n": n,
        "temperature": 1,
    }
    first = client.chat.completions.create(**asked).usage
    whole = client.chat.completions.create(**asked).usage
    *_, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert first is not None and whole is not None
    blocks = (whole.prompt_tokens - 1) // BLOCK * BLOCK
    assert cached(first) < cached(whole) == cached(last.usage) == blocks


def test_requests_of_another_salt_use_nothing_of_each_others(client: openai.OpenAI) -> None:
    prompt = [1000 + i % 7 for i in range(2 * BLOCK)]
    found = []
    for salt in (None, "a", "b", None, "a", "b"):
        body = {} if salt is None else {"cache_salt": salt}
        found.append(cached(complete(client, prompt, extra_body=body).usage))
    assert found == [0, 0, 0, BLOCK, BLOCK, BLOCK]


def test_every_dialect_with_a_cached_count_takes_a_salt(client: openai.OpenAI) -> None:
    text = "What is deep learning? " + "please " * 3 * BLOCK
    message: Any = [{"role": "user", "content": text}]

    def chat(**body: Any) -> int:
        made = client.chat.completions.create(model="demo", messages=message, max_tokens=1, extra_body=body)
        return cached(made.usage)

    def respond(**body: Any) -> int:
        made = client.responses.create(model="demo", input=text, max_output_tokens=1, store=False, extra_body=body)
        assert made.usage is not None
        return made.usage.input_tokens_details.cached_tokens

    whole = chat() or chat()
    assert whole > BLOCK
    for ask, salt in ((chat, "chat"), (respond, "response")):
        assert [ask(cache_salt=salt), ask(cache_salt=salt), ask()] == [0, whole, whole]


@pytest.mark.parametrize("salt", ["", 7, "x" * 257])
def test_a_salt_is_a_text_that_is_neither_empty_nor_long(client: openai.OpenAI, salt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, "x", extra_body={"cache_salt": salt})
    assert refused.value.param == "cache_salt"


# ------------------------------------------------------------------------------------------------ token ids


QUESTION: Any = [{"role": "user", "content": "What is deep learning?"}]


def test_a_completion_has_the_ids_of_its_tokens(client: openai.OpenAI) -> None:
    prompts = ["What is", "Who are you?"]
    asked: dict[str, Any] = {"max_tokens": 4, "extra_body": {"return_token_ids": True}}
    choices = complete(client, prompts, **asked).choices
    for choice in choices:
        again = complete(client, choice.prompt_token_ids, **asked).choices[0]
        assert (again.text, again.token_ids, again.prompt_token_ids) == (
            *(choice.text, choice.token_ids),
            choice.prompt_token_ids,
        )
        assert len(choice.token_ids) == 4
        followed = complete(client, [*choice.prompt_token_ids, *choice.token_ids[:2]], **asked).choices[0]
        assert followed.token_ids[:2] == choice.token_ids[2:]
    pieces = [chunk.choices[0] for chunk in complete(client, prompts, stream=True, **asked)]
    for choice in choices:
        first, *later = (piece for piece in pieces if piece.index == choice.index)
        assert first.prompt_token_ids == choice.prompt_token_ids
        assert not any(hasattr(piece, "prompt_token_ids") for piece in later)
        assert [one for piece in (first, *later) for one in piece.token_ids] == choice.token_ids
    assert not hasattr(complete(client, "What is").choices[0], "token_ids")


def test_a_chat_has_the_ids_of_its_tokens(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": QUESTION, "temperature": 0}
    whole: Any = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    (choice,) = whole.choices
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    assert len(choice.token_ids) == whole.usage.completion_tokens  # the end of the text is one of them
    text = complete(client, whole.prompt_token_ids, max_tokens=100).choices[0].text
    assert text == choice.message.content
    first, *later = client.chat.completions.create(**asked, stream=True, extra_body={"return_token_ids": True})
    chunks: list[Any] = [first, *later]
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in later)
    assert [one for chunk in chunks for one in chunk.choices[0].token_ids] == choice.token_ids
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_log_probabilities_name_tokens_by_their_ids(client: openai.OpenAI) -> None:
    both = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = complete(client, "What is", max_tokens=3, logprobs=2, extra_body=both).choices[0]
    expected = [f"token_id:{token_id}" for token_id in choice.token_ids]
    assert choice.logprobs.tokens == expected
    for name, top in zip(expected, choice.logprobs.top_logprobs, strict=True):
        assert next(iter(top)) == name and len(top) == 2
    chat: Any = client.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, max_tokens=3, logprobs=True, top_logprobs=1, extra_body=both
    )
    content = chat.choices[0].logprobs.content
    expected = [f"token_id:{token_id}" for token_id in chat.choices[0].token_ids]
    assert [one.token for one in content] == [one.top_logprobs[0].token for one in content] == expected
    assert b"".join(bytes(one.bytes) for one in content).decode() == chat.choices[0].message.content
    raw = client.completions.with_raw_response.create(
        model="demo", prompt="What is", max_tokens=1, extra_body={"return_tokens_as_token_ids": True}
    )
    assert raw.headers["x-ignored-parameters"] == "return_tokens_as_token_ids"


# ------------------------------------------------------------------------------------------------ the prompt's


def test_log_probabilities_of_a_completions_prompt(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 3, "return_token_ids": True}
    answer = complete(client, ["What is deep learning?", "Who are"], n=2, temperature=1, extra_body=asked)
    assert [len(choice.prompt_logprobs) for choice in answer.choices] == [
        len(choice.prompt_token_ids) for choice in answer.choices
    ]
    for choice in answer.choices:
        ids, (first, *others) = choice.prompt_token_ids, choice.prompt_logprobs
        assert first is None
        echoed = complete(client, ids, echo=True, logprobs=0).choices[0].logprobs
        for position, entry in enumerate(others, 1):
            own, likeliest = entry[str(ids[position])], [one for one in entry.values() if one["rank"] <= 3]
            assert own["logprob"] == pytest.approx(echoed.token_logprobs[position], abs=1e-4)
            assert own["decoded_token"] == echoed.tokens[position]
            assert sorted(one["rank"] for one in likeliest) == [1, 2, 3]
            assert len(entry) == 3 + (own["rank"] > 3)
            best = complete(client, ids[:position], extra_body={"return_token_ids": True}).choices[0].token_ids[0]
            assert entry[str(best)]["rank"] == 1


def test_log_probabilities_of_a_chats_prompt(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": QUESTION, "max_tokens": 1, "n": 2}
    answer: Any = client.chat.completions.create(**asked, extra_body={"prompt_logprobs": 0, "return_token_ids": True})
    first, *others = answer.prompt_logprobs
    assert first is None
    assert [int(token_id) for entry in others for token_id in entry] == answer.prompt_token_ids[1:]
    assert all(one["logprob"] <= 0 and one["rank"] >= 1 for entry in others for one in entry.values())


@pytest.mark.parametrize("asked", [{"stream": True, "prompt_logprobs": 1}, {"prompt_logprobs": 21}])
def test_unsupported_prompt_logprobs_are_refused(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    stream, extra = asked.get("stream", False), {"prompt_logprobs": asked["prompt_logprobs"]}
    prompts: list[tuple[Any, dict[str, Any]]] = [
        (client.completions.create, {"prompt": "a"}),
        (client.chat.completions.create, {"messages": QUESTION}),
    ]
    for create, prompt in prompts:
        with pytest.raises(openai.BadRequestError) as caught:
            create(model="demo", **prompt, stream=stream, extra_body=extra)
        assert caught.value.param == "prompt_logprobs"

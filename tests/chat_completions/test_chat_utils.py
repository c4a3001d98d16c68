"""Chats to prompts, for handlers that generate by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.chat_completions.chat_properties import ChatProperties
from djl_python.chat_completions.chat_utils import is_chat_completions_request, parse_chat_completions_request
from djl_python.properties_manager.properties import Properties

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": "0.5", "user": "ada"}


class Templates:
    """A tokenizer whose template joins roles and contents."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        return " ".join(f"{message['role']}:{message['content']}" for message in messages)


def test_a_chat_is_recognized_by_its_messages() -> None:
    assert is_chat_completions_request(CHAT)
    assert not is_chat_completions_request({"inputs": "Hi"})


def test_parameters_have_lmis_names() -> None:
    text, parameters = parse_chat_completions_request(dict(CHAT), True, Templates())
    assert text == "user:Hi"
    assert parameters == {
        "frequency_penalty": 0.0,
        "max_new_tokens": 5,
        "presence_penalty": 0.0,
        "stream": False,
        "temperature": 0.5,
        "top_p": 1.0,
        "do_sample": True,
        "details": True,
        "output_formatter": "json_chat",
    }
    streamed = {**CHAT, "stream": True, "temperature": 0}
    _, parameters = parse_chat_completions_request(streamed, True, Templates())
    assert (parameters["output_formatter"], parameters["do_sample"]) == ("jsonlines_chat", False)


def test_parts_of_a_message() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    chat = {"messages": [{"role": "user", "content": parts}]}
    assert parse_chat_completions_request(chat, True, Templates(), "<image>")[0] == "user:see\n<image>"
    with pytest.raises(ValueError, match="a part of type 'image_url': the model takes text only"):
        parse_chat_completions_request(chat, True, Templates())


def test_dynamic_batches_and_tokenizers_without_templates_take_no_chats() -> None:
    batches = Properties(model_id="m", batch_size=4)
    for configs in (batches, None):
        with pytest.raises(ValueError, match="not for a dynamic batch"):
            parse_chat_completions_request(dict(CHAT), False, Templates(), configs=configs)
    single = Properties(model_id="m")
    assert parse_chat_completions_request(dict(CHAT), False, Templates(), configs=single)[0] == "user:Hi"
    with pytest.raises(AttributeError, match="object has no chat templates"):
        parse_chat_completions_request(dict(CHAT), True, object())
    with pytest.raises(ValueError, match="mistral"):
        parse_chat_completions_request(dict(CHAT), True, Templates(), is_mistral_tokenizer=True)


def test_properties_of_a_chat() -> None:
    chat = ChatProperties(**CHAT, top_logprobs=3, unheard_of=1)
    assert (chat.max_tokens, chat.temperature, chat.user, chat.top_logprobs) == (5, 0.5, "ada", None)
    assert ChatProperties(**CHAT, logprobs="false", top_logprobs="30").top_logprobs is None
    assert ChatProperties(**CHAT, logprobs=True, top_logprobs=3).model_dump(by_alias=True)["logprobs"] == 3
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 3}, "temperature: expected a number from 0 to 2, got 3"),
        ({"presence_penalty": -2.5}, "presence_penalty: expected a number from -2 to 2"),
        ({"logit_bias": {"5": 101}}, "logit_bias: expected numbers from -100 to 100"),
        ({"max_tokens": "many"}, "max_tokens='many'"),
        ({"messages": [{"role": "user"}]}, "a message needs a role and a content, found role"),
    ]
    for given, message in wrong:
        with pytest.raises(ValueError, match=message):
            ChatProperties(**{**CHAT, **given})
    with pytest.raises(ValueError, match="messages is missing"):
        ChatProperties()

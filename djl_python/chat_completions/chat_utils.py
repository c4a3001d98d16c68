"""A chat's body to a prompt and its parameters, for a `model.py` that generates by itself. Runs in the worker."""

from __future__ import annotations

from typing import Any

from ..properties_manager.properties import Properties
from .chat_properties import ChatProperties


def is_chat_completions_request(inputs: dict[str, Any]) -> bool:
    """Whether a decoded body is a chat's."""
    return "messages" in inputs


def parse_chat_completions_request(
    input_map: dict[str, Any],
    is_rolling_batch: bool,
    tokenizer: Any,
    image_token: str | None = None,
    configs: Properties | None = None,
    is_mistral_tokenizer: bool = False,
) -> tuple[str, dict[str, Any]]:
    """A chat's prompt, by the tokenizer's chat template, and its parameters under LMI's names.

    `image_token` stands for each image in the prompt; without one, a chat with images is refused.

    Raises:
        ValueError: the model batches dynamically, or the body is not what `ChatProperties` takes.
        AttributeError: the tokenizer has no chat templates.
    """
    if is_mistral_tokenizer:
        raise ValueError("mistral-common's tokenizers are not used here: load the tokenizer with transformers")
    if not is_rolling_batch and (configs is None or configs.batch_size > 1):
        raise ValueError("chats are not for a dynamic batch: set batch_size=1, or option.rolling_batch")
    if not hasattr(tokenizer, "apply_chat_template"):
        raise AttributeError(f"{type(tokenizer).__name__} has no chat templates (apply_chat_template)")
    chat = ChatProperties(**input_map)
    messages = [{**message, "content": _text(message["content"], image_token)} for message in chat.messages]
    parameters = chat.model_dump(by_alias=True, exclude_none=True, exclude=("messages",))
    parameters["do_sample"] = bool(chat.temperature)
    parameters["details"] = True
    parameters["output_formatter"] = "jsonlines_chat" if chat.stream else "json_chat"
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True), parameters


def _text(content: Any, image_token: str | None) -> Any:
    """A message's content as text, which chat templates of language models expect."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if part.get("type") == "text":
            parts.append(part["text"])
        elif image_token is None:
            raise ValueError(f"a part of type {part.get('type')!r}: the model takes text only")
        else:
            parts.append(image_token)
    return "\n".join(parts)

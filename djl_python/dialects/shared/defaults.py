"""The defaults of requests, under the names of OpenAI's fields, for forms that show them.

Runs in the worker, once its model is loaded. No default is written here: they are read from parsed requests without
    fields.
"""

from __future__ import annotations

from typing import Any, Final

from ...config import ModelConfig
from ...core.types import Chat, GenerateRequest
from ...ipc.protocol import Defaults
from .chat.request import read_chat
from .completion import read_completion
from .fields.generation import UNBOUNDED

CHAT: Final = "chat"
COMPLETION: Final = "completion"

_REST: Final = "all that fit"
_DRAWN: Final = "random"
_TOOL: Final = {"type": "function", "function": {"name": "f"}}
#: Fields with the same name in the parsed request: those of sampling, and of the text.
_SAMPLING: Final = (
    *("top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "ignore_eos",
)
_TEXT: Final = ("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens")


def request_defaults(model: ModelConfig) -> Defaults:
    """The defaults of chats and of completions with this model, by field.

    Args:
        model: with its checkpoint's facts.
    """
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "tools": [_TOOL]}
    chat = read_chat(asked, model, must_fit=True).request
    completion = read_completion({"prompt": "?"}, model, must_fit=True).requests[0]
    shared = _shared(chat)
    return {
        CHAT: {**shared, "max_completion_tokens": shared["max_tokens"], **_of_chats(chat.prompt)},
        COMPLETION: {
            **_shared(completion),
            "best_of": completion.branching.best_of,
            "add_special_tokens": completion.add_special_tokens,
            "echo": False,
        },
    }


def _shared(request: GenerateRequest) -> dict[str, bool | int | float | str]:
    sampling, text = request.sampling, request.text
    return {
        "max_tokens": _REST if sampling.max_new_tokens >= UNBOUNDED else sampling.max_new_tokens,
        "min_tokens": sampling.min_new_tokens,
        "temperature": sampling.temperature if sampling.do_sample else 0,
        **({"seed": _DRAWN} if sampling.do_sample else {}),
        **{name: getattr(sampling, name) for name in _SAMPLING},
        **{name: getattr(text, name) for name in _TEXT},
        "n": request.branching.n,
    }


def _of_chats(prompt: str | tuple[int, ...] | Chat) -> dict[str, bool | int | float | str]:
    if not isinstance(prompt, Chat) or prompt.tool_use is None:
        return {}
    return {
        "tool_choice": prompt.tool_use.choice,
        "parallel_tool_calls": prompt.tool_use.parallel,
        "add_generation_prompt": prompt.add_generation_prompt,
        "continue_final_message": prompt.continue_final,
    }

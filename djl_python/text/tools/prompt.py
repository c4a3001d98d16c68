"""Adds tools to a chat whose template has no place for them. Runs in the worker.

Source: TGI 2.3.2, which appends `tool_prompt` and the tools to the last message. Here that is done only if a call is
    forced: otherwise, a model without a syntax of calls would write something that is no call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...core.types import ToolUse

_USUAL: Final = (
    'Call what fits of these functions. Answer with JSON only: the "name" of the function, and its "arguments" as its '
    "parameters describe them."
)


def with_tools(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[Mapping[str, Any]]:
    """The messages, with the callable tools appended to the last one that is not the assistant's."""
    text = f"\n---\n{use.prompt or _USUAL}\n{json.dumps(use.callable, ensure_ascii=False)}"
    prompt = list(messages)
    others = [i for i, message in enumerate(prompt) if message.get("role") != "assistant"]
    if others:
        message = prompt[others[-1]]
        content = message.get("content") or ""
        more = content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]
        prompt[others[-1]] = {**message, "content": more}
    return prompt

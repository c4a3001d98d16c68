"""What a framing decides, in every dialect alike."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model

CHAT = {"messages": [{"role": "user", "content": "a"}], "stream": True}
COMPLETION = {"model": "m", "prompt": "a", "stream": True}
PROMPT = {"inputs": "a"}
TRITON = {"text_input": "a"}


@pytest.mark.parametrize(
    ("name", "operation", "body", "options"),
    [
        ("lmi", "predict", PROMPT, {"output_formatter": "sse"}),
        ("lmi", "predict", PROMPT | {"stream": True}, {"tgi_compat": True}),
        ("lmi", "predict", PROMPT, {"output_formatter": "sse", "rolling_batch": "disable"}),
        ("lmi", "predict", CHAT, {"output_formatter": "sse_chat"}),
        ("openai", "chat", CHAT, {}),
        ("openai", "completion", COMPLETION, {}),
        ("tgi", "generate_stream", PROMPT, {}),
        ("tgi", "compat_generate", PROMPT | {"stream": True}, {}),
        ("mindie", "generate_stream", PROMPT, {}),
        ("triton", "generate_stream", TRITON, {}),
    ],
)
def test_quiet_event_streams_are_kept_alive(name: str, operation: str, body: Any, options: dict[str, Any]) -> None:
    """Proxies end a connection that is quiet for long, as before the first token of a long prompt."""
    formatter = dialect(name).parse(inputs(operation, body, name), model(**options)).formatter
    assert formatter.stream and formatter.headers["content-type"].startswith("text/event-stream")
    assert formatter.keep_alive == b":\n\n"


@pytest.mark.parametrize(
    ("name", "operation", "body", "options"),
    [
        ("lmi", "predict", PROMPT | {"stream": True}, {}),
        ("lmi", "predict", PROMPT | {"stream": True}, {"rolling_batch": "disable"}),
        ("lmi", "predict", CHAT, {}),
        ("openai", "chat", CHAT, {"output_formatter": "jsonlines_chat"}),
        ("triton", "generate", TRITON, {}),
    ],
)
def test_nothing_is_between_lines_or_before_an_object(
    name: str, operation: str, body: Any, options: dict[str, Any]
) -> None:
    assert dialect(name).parse(inputs(operation, body, name), model(**options)).formatter.keep_alive == b""

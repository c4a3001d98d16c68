"""Short answers: pages, and errors in a dialect's shape or, where no dialect is known, in the front end's own.

Runs in the front end. That own shape is that of DJL's front end, including the names in `type`: clients match on them.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ...config import ModelConfig
from ...core.errors import ServingError, UnauthorizedError
from ...dialects.shared.base import Answer, Dialect, retry_header
from ...dialects.shared.djl_errors import djl_error
from ...formats.json_framing import encode_json


def front_end_error(error: ServingError) -> Answer:
    """`error` in the front end's own shape: `{"code", "type", "message"}`, indented."""
    return Answer(error.status, pretty_json(djl_error(error)))


def error_answer(
    error: ServingError, dialect: Dialect | None, model: ModelConfig | None, operation: str = ""
) -> Answer:
    """`error` as the dialect writes it, or as the front end does where no route was found."""
    answer = front_end_error(error) if dialect is None else dialect.error(error, model, operation=operation)
    if isinstance(error, UnauthorizedError):
        return replace(answer, headers={**answer.headers, "www-authenticate": "Bearer"})
    if "retry-after" in map(str.lower, answer.headers):
        return answer
    return replace(answer, headers={**answer.headers, **retry_header(error)})


def pretty_json(value: object) -> bytes:
    """`value` as JSON in the layout of DJL's front end."""
    return msgspec.json.format(encode_json(value), indent=2) + b"\n"

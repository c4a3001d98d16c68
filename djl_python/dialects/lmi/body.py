"""LMI's request bodies: JSON, text or forms as the JSON fields that they stand for.

Runs in the worker.
"""

from __future__ import annotations

from typing import Any, Final

from ...core.errors import PayloadError
from ...formats.forms import MULTIPART, URLENCODED, media_type
from ...formats.json_framing import JSON
from ...inputs import Input
from ..shared.request_body import read_json

_TEXT: Final = "text/plain"
#: Content types other than JSON whose bodies are read as if they were JSON fields.
PLAIN: Final = (_TEXT, URLENCODED, MULTIPART)
FIELDS: Final = ("inputs", "parameters", "stream", "adapters")


def fields_of(inputs: Input, most_values: int) -> dict[str, Any]:
    """The body's fields.

    Raises:
        TooLargeError: it has more values than `most_values`.
        PayloadError: the body does not match its content type, or is no JSON object.
    """
    content_type = media_type(inputs.get_property("content-type") or "")
    if content_type == _TEXT:
        return {"inputs": inputs.get_as_string()}
    if content_type in (URLENCODED, MULTIPART):
        return _form(inputs, content_type, most_values)
    body = read_json(inputs, most_values)
    if not isinstance(body, dict):
        raise PayloadError(f'the request body: expected a JSON object such as {{"inputs": "..."}}, got {kind(body)}')
    return body


def _form(inputs: Input, content_type: str, most_values: int) -> dict[str, Any]:
    """The fields of a form, which are those of the JSON body; all values but the prompt are JSON."""
    if not inputs.contains_key("inputs"):
        # The default content type of `curl -d`.
        raise PayloadError(
            f"the request body: a form ({content_type}) without a field inputs; for JSON send Content-Type: {JSON}"
        )
    fields = [name for name in FIELDS if name != "inputs" and inputs.contains_key(name)]
    return {"inputs": inputs.get_as_string("inputs")} | {name: read_json(inputs, most_values, name) for name in fields}


def kind(value: object) -> str:
    """The type of a JSON value, in words."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")

"""The fields that vLLM adds to every request about texts, and the usage of their answers.

Runs in the worker. Source: vLLM's pooling protocol.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core.errors import ParameterError, PayloadError
from ...core.text_tasks import TextInput
from ...core.turns.precedence import MAX_PRIORITY
from ...inputs import Input
from ..shared.request_body import ignored_header, json_object
from ..shared.text_tasks.texts import TextsOrIds, text_inputs
from ..shared.typed_body import read_body, unknown_fields

#: The value for as many tokens as the model takes.
_MODELS_LIMIT: Final = -1


class PoolingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every request about texts."""

    model: str | None = None
    user: Annotated[str, Meta(description="Without effect.")] | None = None
    priority: (
        Annotated[
            int,
            Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower goes first, among requests of one tenant."),
        ]
        | None
    ) = None
    truncate_prompt_tokens: (
        Annotated[
            int,
            Meta(ge=-1, description="Keep so many tokens of a text; -1: as many as the model takes. Else it must fit."),
        ]
        | None
    ) = None
    truncation_side: (
        Annotated[Literal["left", "right"], Meta(description="Which end of a long text is dropped; right if absent.")]
        | None
    ) = None

    @property
    def text(self) -> TextInput:
        """The settings that the texts share.

        Raises:
            ParameterError: no tokens are to be kept.
        """
        keep = self.truncate_prompt_tokens
        if keep is None:
            return TextInput()
        if keep == 0:
            field = "truncate_prompt_tokens"
            raise ParameterError(f"{field}: expected an integer >= 1, or -1 for the model's limit, got 0", field)
        return TextInput(truncate=self.truncation_side or "right", max_tokens=None if keep == _MODELS_LIMIT else keep)


class InputFields(PoolingFields, frozen=True, kw_only=True):
    """A request whose texts are in `input`."""

    input: Annotated[TextsOrIds, Meta(description="A text or several, each as a string or as its token ids.")]
    add_special_tokens: Annotated[bool, Meta(description="Whether the tokenizer adds its own, such as [CLS].")] = True

    @property
    def texts(self) -> tuple[TextInput, ...]:
        """The texts.

        Raises:
            PayloadError, ParameterError: too many inputs, or inputs of several kinds.
        """
        like = msgspec.structs.replace(self.text, add_special_tokens=self.add_special_tokens)
        return text_inputs(self.input, "input", like)[0]


class PoolingUsage(msgspec.Struct, frozen=True):
    """The tokens that the model has read."""

    prompt_tokens: int
    total_tokens: int


FieldsT = TypeVar("FieldsT", bound=PoolingFields)


def read_fields(
    inputs: Input, model: ModelConfig, into: type[FieldsT], *payload: str
) -> tuple[FieldsT, Mapping[str, str]]:
    """A body, and the header that names fields without effect.

    Args:
        payload: the fields that are the payload itself.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    body = json_object(inputs, model)
    if body.get("messages") is not None and "messages" not in into.__struct_fields__:
        expected = " and ".join(payload)
        raise PayloadError(f"messages: chats are not embedded, scored or classified; expected {expected}", "messages")
    fields = read_body(body, into, payload=payload)
    return fields, ignored_header(unknown_fields(body, into, model))


def new_id(kind: str) -> str:
    """A unique id, as vLLM's answers have them."""
    return f"{kind}-{uuid.uuid4().hex}"


def usage_of(tokens: int) -> PoolingUsage:
    """The usage of an answer."""
    return PoolingUsage(tokens, tokens)

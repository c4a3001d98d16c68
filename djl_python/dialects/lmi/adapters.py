"""The LoRA adapters that a request names. Runs in the worker. Source: DJL's "Adapters", "Calling Adapters"."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ...config import ModelConfig
from ...core.errors import ParameterError
from ...inputs import Input
from ..shared.adapters import adapter_named
from ..shared.base import Parsed

#: The body's fields that may name adapters.
ADAPTER_FIELDS: Final = ("adapters", "adapter")
_ADAPTER_QUERY: Final = "adapter"
_ADAPTER_HEADER: Final = "x-amzn-sagemaker-adapter-identifier"
_ATTRIBUTES_HEADER: Final = "x-amzn-sagemaker-custom-attributes"


def adapters_named(inputs: Input, named: Mapping[str, Any], model: ModelConfig) -> list[str]:
    """The adapters that a request names, one for each of its prompts or one for all; []: it names none.

    Args:
        named: the body's fields; the query and SageMaker's headers may name adapters too.

    Raises:
        ParameterError: the model has no such adapter.
    """
    query = inputs.get_as_string(_ADAPTER_QUERY) if inputs.contains_key(_ADAPTER_QUERY) else ""
    attributes = dict(
        pair.strip().partition("=")[::2] for pair in (inputs.get_property(_ATTRIBUTES_HEADER) or "").split(",")
    )
    ways = (
        *named.items(),
        (_ADAPTER_QUERY, query),
        (_ADAPTER_HEADER, inputs.get_property(_ADAPTER_HEADER)),
        (_ATTRIBUTES_HEADER, attributes.get("adapter")),
    )
    for field, value in ways:
        values = value if isinstance(value, list) else [value]
        adapters = [adapter_named(entry, model, field) for entry in values]
        if any(adapters):
            return adapters
    return []


def with_adapters(parsed: Parsed, adapters: Sequence[str]) -> Parsed:
    """The requests, each with its adapter.

    Raises:
        ParameterError: the number of adapters is neither 1 nor that of the prompts.
    """
    requests = parsed.requests
    if not adapters:
        return parsed
    if len(adapters) not in (1, len(requests)):
        raise ParameterError(
            f"adapters: expected one for each of {len(requests)} prompts, got {len(adapters)}", "adapters"
        )
    each = adapters if len(adapters) == len(requests) else [*adapters] * len(requests)
    adapted = (msgspec.structs.replace(request, adapter=name) for request, name in zip(requests, each, strict=True))
    return dataclasses.replace(parsed, requests=tuple(adapted))

"""Constraints on the text of an LMI request: the parameters of vLLM, SGLang, llama.cpp and TGI.

Runs in the worker. LMI's schema 0.31 has none. LMI's vLLM handlers pass vLLM's on, and clients of other servers send
theirs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...core.errors import ParameterError
from ...core.types import Grammar
from ..shared.fields.structured_output import ResponseFormat, StructuredOutputFields, StructuredOutputs, grammar_of

#: `grammar` is TGI's object here, not a text.
_NAMES: Final = tuple(name for name in StructuredOutputFields.__struct_fields__ if name != "grammar")


def grammar_asked(
    *, grammar: ResponseFormat | None, structured_outputs: StructuredOutputs | None, **others: Any
) -> Grammar | None:
    """The grammar that parameters ask for, under their names.

    Raises:
        ParameterError: it is not valid, or several ask for one.
    """
    given = {"structured_outputs": structured_outputs, **others}
    name = "response_format"
    if grammar is not None:
        if given["response_format"] is not None:
            raise ParameterError(
                "parameters.grammar: not together with parameters.response_format", "parameters.grammar"
            )
        given["response_format"], name = grammar, "grammar"
    try:
        requested = grammar_of(StructuredOutputFields(**{field: given[field] for field in _NAMES}))
    except ParameterError as error:
        message = error.message.replace("response_format", name, 1)
        raise ParameterError(f"parameters.{message}", _path(error.field, name)) from error
    return None if requested is None else msgspec.structs.replace(requested, field=_path(requested.field, name))


def _path(field: str | None, name: str) -> str:
    return f"parameters.{(field or '').replace('response_format', name, 1)}".rstrip(".")

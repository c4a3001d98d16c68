"""What the text of an LMI request has to be: the parameters of vLLM and of TGI that say so.

Runs in the worker. LMI's schema 0.31 has none; LMI's handlers of vLLM pass theirs on, and those who come from TGI send
`grammar`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...core.errors import ParameterError
from ...core.types import Grammar
from ..shared.fields.structured_output import ResponseFormat, StructuredOutputFields, StructuredOutputs, grammar_of

_NAMES: Final = ("response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs")


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
        found = grammar_of(StructuredOutputFields(**{one: given[one] for one in _NAMES}))
    except ParameterError as error:
        message = error.message.replace("response_format", name, 1)
        raise ParameterError(f"parameters.{message}", _path(error.field, name)) from error
    return None if found is None else msgspec.structs.replace(found, field=_path(found.field, name))


def _path(field: str | None, name: str) -> str:
    return f"parameters.{(field or '').replace('response_format', name, 1)}".rstrip(".")

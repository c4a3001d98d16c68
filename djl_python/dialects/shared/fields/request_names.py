"""Errors with the names of a request's own fields. Runs in the front end and in the worker.

Messages call the prompt `inputs` and the model `model_name`, as LMI does. Other APIs' fields have other names.
"""

from __future__ import annotations

from typing import Final

from ....core.errors import ContextLengthError, ModelNotNamedError, ParameterError, PayloadError, ServingError

#: How this project's messages name the prompt and the model.
OUR_PROMPT: Final = "inputs"
_OUR_MODEL: Final = "Parameter model_name"


def with_request_fields(error: ServingError, prompt_field: str | None) -> ServingError:
    """The error with the field names of the request's API; `prompt_field`: the prompt's; None: no prompt."""
    if isinstance(error, ModelNotNamedError):
        return ModelNotNamedError(error.message.replace(_OUR_MODEL, "model", 1))
    if isinstance(error, ContextLengthError) or not isinstance(error, PayloadError | ParameterError):
        return error
    if prompt_field is None or error.field != OUR_PROMPT:
        return error
    return type(error)(error.message.replace(OUR_PROMPT, prompt_field, 1), prompt_field)

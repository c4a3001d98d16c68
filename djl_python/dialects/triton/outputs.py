"""The outputs that a KServe request asks for, each as JSON or as binary data. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...core.errors import PayloadError
from ..shared.request_body import shown
from .types import InferRequest

_BINARY_OUTPUT: Final = "binary_data_output"


def wanted_outputs(request: InferRequest, parameters: dict[str, Any], names: Sequence[str]) -> dict[str, bool]:
    """The requested outputs, and whether each is binary: by the output's parameters, else the request's. Without
    `outputs`, all are asked for.

    Args:
        parameters: the request's; those about outputs are removed.
        names: the outputs that the model has.

    Raises:
        PayloadError: the model has no such output, or not in this form.
    """
    default = _flag(parameters.pop(_BINARY_OUTPUT, False), f"parameters.{_BINARY_OUTPUT}")
    if not request.outputs:
        return dict.fromkeys(names, default)
    wanted = {}
    for index, output in enumerate(request.outputs):
        field = f"outputs[{index}]"
        if output.name not in names:
            raise PayloadError(f"{field}.name: expected {' or '.join(names)}, got {output.name!r}", f"{field}.name")
        own = output.parameters or {}
        for name in ("classification", "shared_memory_region"):
            if name in own:
                raise PayloadError(f"{field}.parameters.{name}: not served", f"{field}.parameters.{name}")
        wanted[output.name] = _flag(own.get("binary_data", default), f"{field}.parameters.binary_data")
    return wanted


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise PayloadError(f"{field}: expected true or false, got {shown(value)}", field)
    return value

"""`djl-serving ps`: the models that a running server has loaded, with their memory and how long they stay.

Runs in the command's own process. Exit codes: 0 done; 1 no server answers, or it refuses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from .running_server import RunningModel, ServerError, add_server, server_of
from .tables import duration, size, table

_HEAD = ("NAME", "STATUS", "REQUESTS", "MEMORY", "IDLE", "UNTIL")
#: The status of a model without workers.
_UNLOADED = "Unloaded"


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        with server_of(options) as server:
            models = [model for model in server.models() if options.all or model.status != _UNLOADED]
    except ServerError as error:
        print(f"djl-serving ps: {error.message}", file=sys.stderr)
        return 1
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(models)).decode())
    else:
        print(table(_HEAD, [_row(model) for model in models]))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving ps",
        description="The models that a running server has loaded: their memory, how long they have had no request, and "
        "until when they stay.",
    )
    made.add_argument("-a", "--all", action="store_true", help="unloaded models too")
    add_server(made)
    return made


def _row(model: RunningModel) -> tuple[str, ...]:
    name = f"{model.model_name}:{model.version}" if model.version else model.model_name
    requests = str(model.request_in_flight + model.request_in_queue)
    until = model.expires_at or ("-" if model.status == _UNLOADED else "for ever")
    return name, model.status, requests, size(model.memory_bytes), duration(model.idle_seconds), until

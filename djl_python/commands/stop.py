"""`djl-serving stop`: has a running server unload a model, which stays registered.

Runs in the command's own process. Exit codes: 0 done; 1 no server answers, or it refuses.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from .running_server import ServerError, add_server, server_of


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        with server_of(options) as server:
            for name in options.model:
                server.unload(name)
                if not options.json:
                    print(f"{name} is unloaded: its next request loads it")
    except ServerError as error:
        print(f"djl-serving stop: {error.message}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"unloaded": options.model}))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving stop",
        description="Have a running server end a model's workers, once their requests are answered. The model stays "
        "registered: its next request loads it again.",
    )
    made.add_argument("model", nargs="+", metavar="MODEL", help="a model's name on the server")
    add_server(made)
    return made

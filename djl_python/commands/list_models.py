"""`djl-serving list`: the models that are downloaded, and those that a running server has.

Runs in the command's own process. Exit codes: 0 done; 1 the server that --url names does not answer, or refuses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from ..sources.downloads import Download, downloads
from .running_server import NoServerError, RunningModel, ServerError, add_server, server_of
from .tables import size, table

_HEAD = ("NAME", "SIZE", "WHERE")


class _Listing(msgspec.Struct, frozen=True):
    """The models of a listing. `registered` is None without a running server."""

    downloaded: list[Download]
    registered: list[RunningModel] | None


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    registered: list[RunningModel] | None = None
    try:
        with server_of(options) as server:
            registered = server.models()
    except ServerError as error:
        if options.url or not isinstance(error, NoServerError):
            print(f"djl-serving list: {error.message}", file=sys.stderr)
            return 1
    listing = _Listing(downloads(), registered)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(listing)).decode())
        return 0
    rows = [(one.name, size(one.bytes), one.path) for one in listing.downloaded]
    rows += [
        (model.model_name, "-", f"{server.url}: {model.status}, of {model.model_url}") for model in registered or ()
    ]
    print(table(_HEAD, rows))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving list",
        description="The models that are downloaded to this machine, and those that a running server has, if one "
        "answers.",
    )
    add_server(made)
    return made

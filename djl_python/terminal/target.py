"""What MODEL|URL stands for: a client of a server, which is started if it is to be. Runs in the command's process."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from .openai_api import OpenAiApi
from .own_server import OwnServer, own_server


def url_of(options: argparse.Namespace) -> str:
    """The URL of the server that is meant; "" where one is to be started."""
    target: str = options.target
    return target if target.startswith(("http://", "https://")) else ""


@contextlib.contextmanager
def opened(options: argparse.Namespace, console: Console) -> Iterator[tuple[OpenAiApi, OwnServer | None]]:
    """A client whose model is known; and the server, if it is this command's own.

    Args:
        options: of `arguments.add_target`.
        console: shows how far the start is.

    Raises:
        ApiError: the server can't be reached, or does not say what model is meant.
        StartError: the server did not start.
    """
    target: str = options.target
    if url_of(options):
        headers = dict(options.header)
        with OpenAiApi(target, api_key=options.api_key, model=options.model, headers=headers) as api:
            api.find_model()
            yield api, None
        return
    with contextlib.ExitStack() as stack:
        with console.status(f"starting a server for {escape(target)}") as status:
            server = stack.enter_context(own_server(target, lambda line: status.update(escape(line)), options.set))
        api = stack.enter_context(OpenAiApi(socket=str(server.socket), model=options.model))
        api.find_model()
        yield api, server

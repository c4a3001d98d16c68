"""`python -m djl_python.engine --fd N`: the engine process, spawned by a worker with one end of a socket pair."""

from __future__ import annotations

import argparse
import gc
import socket

from ..processes import configure_child
from .loop import serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m djl_python.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="an inherited, connected Unix socket")
    arguments = parser.parse_args()
    configure_child("engine")
    # What is imported and loaded stays: looking for garbage in it, again and again as it grows, would take a quarter of
    # the time to ready. The loop turns it on.
    gc.disable()
    serve(socket.socket(fileno=arguments.fd))


if __name__ == "__main__":
    main()

"""`python -m djl_python.engine --fd N`: the engine process, spawned by a worker with one end of a socket pair."""

from __future__ import annotations

import gc

from ..processes import begin_child
from .loop import serve


def main() -> None:
    sock = begin_child("engine", __doc__)
    # What is imported and loaded stays: looking for garbage in it, again and again as it grows, would take a quarter of
    # the time to ready. The loop turns it on.
    gc.disable()
    serve(sock)


if __name__ == "__main__":
    main()

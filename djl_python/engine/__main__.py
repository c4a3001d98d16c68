"""`python -m djl_python.engine --fd N`: the engine process, spawned by a worker with one end of a socket pair."""

from __future__ import annotations

import gc

from ..ipc.processes import begin_child
from .loop import serve


def main() -> None:
    sock = begin_child("engine", __doc__)
    # Imported and loaded objects stay: collecting garbage again and again while they grow would take a quarter of the
    # time until the engine is ready. `loop.serve` turns the collector on.
    gc.disable()
    serve(sock)


if __name__ == "__main__":
    main()

"""`python -m djl_python.worker --fd N`: the worker process's entry. N is its end of a socket pair.

Runs in the worker's main thread. Started by the front end.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

from ..formats.csv_reading import allow_long_cells
from ..ipc import event_loop
from ..ipc.processes import begin_child
from . import EXIT_STOPPED
from .service import Service


async def _serve(sock: socket.socket) -> None:
    service = Service()
    status = await service.run(sock)
    if status != EXIT_STOPPED or service.thread.busy:
        # Without the interpreter's own shutdown: user code may still run, in the handler's thread or one of its own.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    service.thread.close()


def main() -> None:
    """Serve until told to stop."""
    allow_long_cells()
    event_loop.run_undisturbed(_serve(begin_child("worker", "A model's worker process.")))


if __name__ == "__main__":
    main()

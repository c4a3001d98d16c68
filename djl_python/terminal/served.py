"""`python -m djl_python.terminal.served ARGUMENTS`: `djl-serving ARGUMENTS`, until the process that started it ends.

Runs in the front end's process of a server that `chat` or `run` has started.
"""

from __future__ import annotations

import signal
import sys

from ..ipc.processes import end_with_parent


def main() -> int:
    """Serve; returns the exit code."""
    end_with_parent(signal.SIGTERM)
    from ..cli import main as serve

    return serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

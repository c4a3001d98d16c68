"""`python -m djl_python.agent`: an agent without Ray; its ticket comes on stdin. Runs in the agent's main thread.

A ticket is a secret: it is in no command line. The exit status is 0 once the worker has ended, whatever it ended with.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from ..ipc.remote_protocol import Ticket
from .agent import WORKER_MODULE, run_agent


def main() -> None:
    """Run the agent."""
    parser = argparse.ArgumentParser(prog="python -m djl_python.agent", description="Start a worker for a front end.")
    parser.add_argument("--node", default="", help="name of this machine in the front end's log; default: the host's")
    parser.add_argument("--worker", default=WORKER_MODULE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    ticket = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Ticket)
    run_agent(ticket, arguments.node, arguments.worker)


if __name__ == "__main__":
    main()
